#pragma once
// Dot products of few rows of x with a row of one-byte codes, on the CPU, at the speed at which the codes come from
// memory: codes become f32 values in registers, never in memory.
#include <cstdint>

namespace fewbit::cpu {

// The instruction sets that these loops are written for, the best one last: avx2 with FMA and F16C; avx512 with BW, VL
// and DQ besides.
enum class VectorSet { none, avx2, avx512 };
// The best one that this machine has.
VectorSet vector_set();

// Whether this machine has the loops, and they take rows of `in` codes: whole 64s for f8_dots, whole 16s for
// level_dots, whose groups of `group` codes too (>= in: one group of all).
bool f8_dots_fit(int64_t in);
bool level_dots_fit(int64_t in, int64_t group);

// sums[r] = x_r . (values of the E4M3 codes [in], times scale); x f32 [rows, in]. False where a code is a NaN; `sums`
// is undefined then. Otherwise bit for bit what dot() (kernels/cpu/cpu_rows.h) makes, where it has fused multiply-adds,
// of the values f8_value(code) * scale written to memory.
bool f8_dots(VectorSet, const uint8_t* codes, float scale, const float* x, int64_t rows, int64_t in, float* sums);

// A row of an integer linear; a level is a code less the zero of its group.
struct LevelRow {
  const uint8_t* codes = nullptr;  // [in]
  const float* scales = nullptr;   // [G]
  const uint8_t* zeros = nullptr;  // [G] or null
  int zero = 0;                    // of every group, where zeros is null
  int64_t group = 0, in = 0;       // codes in a group (the last may have fewer), codes in the row

  float zero_of(int64_t g) const { return static_cast<float>(zeros ? zeros[g] : zero); }
};
// sums[r] = sum over groups of scale * (x_r . levels of the group), all in f32; x f32 [rows, in].
void level_dots(VectorSet, const LevelRow&, const float* x, int64_t rows, float* sums);

}  // namespace fewbit::cpu
