#pragma once
// Few rows of x against a linear of up to 4 bits in the CPU's own layout (kernels/products/row_gemm.h), at the speed at
// which the codes come from memory: codes become levels (code - zero) in registers, 64 columns at a time, never in
// memory.
#include <cstdint>

#include "kernels/products/row_gemm.h"

namespace fewbit::cpu {

// x as the loops over this linear want it, zeros past the end: bf16 words where the machine multiplies them
// (AVX512-BF16) and x is bf16, else f32; of every 128 columns those that are 0, 1, 2 and 3 modulo 4 (bf16 and groups of
// whole 128s), else of every 64 the even ones, then the odd ones.
class NibbleInput {
 public:
  NibbleInput(const RowPackedView&, ConstTensorView x);  // x [rows, in] f32 | bf16
  int64_t rows() const { return rows_; }
  bool bf16_words() const { return words_; }
  bool by_four() const { return by_four_; }
  const void* row(int64_t r) const { return data_ + r * row_bytes_; }

 private:
  int64_t rows_ = 0, row_bytes_ = 0;
  bool words_ = false, by_four_ = false;
  const char* data_ = nullptr;  // scratch of the calling thread
};

// Whether this machine and this linear (at most 4 bits, consecutive groups of a multiple of 32 columns or one group of
// all) can take the loops: AVX2 at least.
bool nibble_dots_fit(const RowPackedView&);

// sums[r] = x_r . row o of the linear, scales included; all rows of the input.
void nibble_dots(const RowPackedView&, const NibbleInput&, int64_t o, float* sums);

}  // namespace fewbit::cpu
