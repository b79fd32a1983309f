#pragma once
// Dot products of few rows of x with a row of a linear of up to 4 bits in the CPU's own layout
// (kernels/products/row_gemm.h), at the speed at which the codes come from memory: codes become levels (code - zero) in
// registers, never in memory.
#include <cstdint>

#include "kernels/products/row_gemm.h"

namespace fewbit::cpu {

// x in the order in which the loops read it, with zeros past the end. Within every run of columns those that share a
// remainder stand together, in the order of the remainders:
//
//   x, machine               columns and groups                     values   run   modulo   loop
//   bf16, with AVX512-BF16   in % 128 == 0, one group or whole 128s bf16     128   4        wide_products
//   bf16, with AVX512-BF16   any others                             bf16     64    2        bf16_products
//   any other                any                                    f32      64    2        avx2_products
class NibbleInput {
 public:
  NibbleInput(const RowPackedView&, ConstTensorView x);  // x [rows, in] f32 | bf16
  int64_t rows() const { return rows_; }
  bool bf16_words() const { return words_; }  // else f32
  bool by_four() const { return by_four_; }   // remainders modulo 4, else 2
  const void* row(int64_t r) const { return data_ + r * row_bytes_; }

 private:
  int64_t rows_ = 0, row_bytes_ = 0;
  bool words_ = false, by_four_ = false;
  const char* data_ = nullptr;  // scratch of the calling thread
};

// Whether this machine (AVX2 and FMA at least) has the loops, and they take this linear: at most 4 bits, one group or
// consecutive groups of a multiple of 32 columns.
bool nibble_dots_fit(const RowPackedView&);

// sums[r] = x_r . values of row o, for all rows of x. Levels times x are summed in f32 over a group, or a step of one,
// before the scale multiplies them; AVX512-BF16 adds pairs in its own way.
void nibble_dots(const RowPackedView&, const NibbleInput&, int64_t o, float* sums);

}  // namespace fewbit::cpu
