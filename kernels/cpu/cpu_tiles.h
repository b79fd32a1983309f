#pragma once
// What the dense and the packed products of the CPU have in common: the loop over outputs for few rows of x, the tiling
// for many, and the way from sums to y.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"
#include "src/core/tensor.h"

namespace fewbit::cpu {

// Gives rows [begin, end) of a weight as f32 [end - begin, in]: where they lie, or made in `room`. Called on the thread
// that will use them.
using WeightRows = std::function<const float*(int64_t begin, int64_t end, float* room)>;
// y = x W^T + bias for many rows of x, in f32: tiles of fixed shape, (rows of x) x (rows of W), in parallel.
//   x [rows, in] f32 | bf16 · bias [out] the dtype of x, or null · y [rows, out] f32 | bf16, rounded once
void tiled_product(ConstTensorView x, int64_t out, const WeightRows& weight, ConstTensorView bias, TensorView y);
// Values [begin, end) of row `row` of y from their sums: adds the bias (widened to f32) and rounds once.
void store_row(const float* sums, ConstTensorView bias, int64_t begin, int64_t end, TensorView y, int64_t row);
// The same of rows [row, row + rows) of y, whose sums are `ld` apart and get the bias where they lie.
void store_rows(float* sums, int64_t ld, int64_t rows, ConstTensorView bias, int64_t begin, int64_t end, TensorView y,
                int64_t row);

inline constexpr int64_t kRowsByOutputs = 8;  // rows of x that product_by_outputs() takes, at most
// Bytes of the weight that a thread takes at once. At the start of each such range nothing has been prefetched yet, so
// they should be few.
inline constexpr int64_t kBytesAtOnce = 1 << 17;
// y = x W^T + bias for few rows of x, one output after the other. dots(o, sums) leaves the sums of every row of x with
// row o of W, which takes `bytes` of memory; it may use Scratch::w.
template <class Dots>
void product_by_outputs(int64_t rows, int64_t out, int64_t bytes, ConstTensorView bias, TensorView y,
                        const Dots& dots) {
  FEWBIT_ASSERT(rows <= kRowsByOutputs);
  parallel_for(out, std::max<int64_t>(1, kBytesAtOnce / bytes), [&](int64_t begin, int64_t end) {
    float* by_row = scratch(Scratch::y, (end - begin) * rows);  // [rows, end - begin]
    std::array<float, kRowsByOutputs> sums{};
    for (int64_t o = begin; o < end; ++o) {
      dots(o, sums.data());
      for (int64_t r = 0; r < rows; ++r) by_row[r * (end - begin) + o - begin] = sums[static_cast<size_t>(r)];
    }
    for (int64_t r = 0; r < rows; ++r) store_row(by_row + r * (end - begin), bias, begin, end, y, r);
  });
}

// y += product: product f32, y f32 | bf16 of the same shape; added in f32, rounded once to y.
void add_product(ConstTensorView product, TensorView y);

}  // namespace fewbit::cpu
