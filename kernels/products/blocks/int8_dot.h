#pragma once
// The loops of block_int8_gemm() in AVX512-VNNI (int8_dot_cpu.cpp) and AVX2 (int8_wide_cpu.cpp).
#include "kernels/products/blocks/block_layout.h"

namespace fewbit::cpu {

bool has_int8_dots();       // this machine has AVX512-VNNI, BW, VL and DQ
bool has_wide_int8_dots();  // AVX2 and FMA

// Rows of x as the loops read them.
struct CodedRows {
  int64_t rows = 0, in = 0, group = 0;
  // [rows][in] in the orders of the form's planes (plane_order()); `high` where there are two planes, else null.
  const int8_t *low = nullptr, *high = nullptr;
  const float* scales = nullptr;  // [rows][in / 32]
  const int32_t* sums = nullptr;  // [rows][in / group]: of the codes of a group of the weight
  const float* scaled = nullptr;  // the same times x's scale, f32; of a weight with minima, else null
};

// Column (of 32) of byte `at` of 32 codes of x that meet a plane of `bits` bits: the bytes of a word of 32 bits are
// multiplied at once with those of a word of the plane, shifted to the right by `bits` more from one word to the next.
int plane_order(int bits, int at);

// The sums of all rows with the outputs of a strip, f32 [rows][32]; scales and minima as strip_scales() makes them.
struct Int8Strip {
  const BlockForm& form;
  const uint8_t* bytes = nullptr;
  const float *scales = nullptr, *minima = nullptr;
};
void int8_dots(const Int8Strip&, const CodedRows&, float* sums);
void wide_int8_dots(const Int8Strip&, const CodedRows&, float* sums);

}  // namespace fewbit::cpu
