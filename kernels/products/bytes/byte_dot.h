#pragma once
// Few rows of x against a row of one-byte codes, at the speed at which the codes come from memory: codes become f32
// values in registers, never in memory.
#include <cstdint>

namespace fewbit::cpu {

// Instruction sets that there are loops for: AVX2 stands for FMA and F16C too, AVX-512 for BW, VL and DQ. What the
// machine has, the best of them last.
enum class ByteLoops { none, avx2, avx512 };
ByteLoops byte_loops();

// Whether rows of `in` codes, in groups of `group` (>= in: one of all), fit the loops.
bool f8_dots_fit(int64_t in);
bool level_dots_fit(int64_t in, int64_t group);

// sums[r] = x_r . (values of the E4M3 codes [in] times scale), x f32 [rows, in]: bit for bit what dot()
// (kernels/cpu/cpu_rows.h) makes of values written down as f8_value(code) * scale where it has fused multiply-adds.
// False where a code is a NaN, with `sums` undefined.
bool f8_dots(ByteLoops, const uint8_t* codes, float scale, const float* x, int64_t rows, int64_t in, float* sums);

// A row of the linear: levels are codes [in] less their group's zero.
struct LevelRow {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;   // [G]
  const uint8_t* zeros = nullptr;  // [G] or null
  int zero = 0;                    // where zeros is null
  int64_t group = 0, in = 0;

  float zero_of(int64_t g) const { return static_cast<float>(zeros ? zeros[g] : zero); }
};
// sums[r] = the sum over groups of scale * (x_r . levels), x f32 [rows, in].
void level_dots(ByteLoops, const LevelRow&, const float* x, int64_t rows, float* sums);

}  // namespace fewbit::cpu
