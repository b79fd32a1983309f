#pragma once
// Sizes of random decoder layers, and parts of their weights.
#include <cstring>

#include "kernels/decode/decode_layers.h"

namespace fewbit::test {

struct Sizes {
  int64_t hidden, inner;
  int heads, kv_heads;
  int64_t head_dim;
  bool biases = false, head_norms = false, hadamard = false;
  int64_t window = 0;
  DType cache = DType::bf16;
  int layers = 3;
  bool bytes = false;          // E4M3 weights and inputs, else packed
  float fixed = 0;             // scale of the inputs; 0: one of their own
  bool zeros = false;          // packed with zero points
  bool apart = false;          // DecodeForm::attention_apart
  int experts = 0, top_k = 0;  // a mixture in place of gate, up and down
  bool renormalise = true;
  int part = 0, parts = 1;  // of `parts` GPUs that share the layers, the one whose heads and inner values are made
};
// What of a linear one of several GPUs has.
enum class Cut { nothing, rows, columns };

// Rows [r0, r1) and columns [c0, c1) of a matrix on the host.
inline Tensor block_of(const Tensor& t, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
  Tensor block = Tensor::host(t.dtype(), {r1 - r0, c1 - c0});
  const int64_t row = t.bytes() / t.shape()[0], value = row / t.shape()[1];
  for (int64_t r = r0; r < r1; ++r)
    std::memcpy(static_cast<char*>(block.view().data) + (r - r0) * (c1 - c0) * value,
                static_cast<const char*>(t.view().data) + r * row + c0 * value, static_cast<size_t>((c1 - c0) * value));
  return block;
}

}  // namespace fewbit::test
