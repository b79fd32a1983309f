#pragma once
// What the dense and the packed products of the CPU share: the tiling for many rows of x, and the way into y.
#include <cstdint>
#include <functional>

#include "src/core/tensor.h"

namespace fewbit::cpu {

// Rows [begin, end) of a weight as f32 [end - begin, in]: where they lie, or made in `room`. Called on the
// thread that will use them.
using WeightRows = std::function<const float*(int64_t begin, int64_t end, float* room)>;
// y = x W^T + bias for many rows of x: fixed tiles of (rows of x) x (rows of W), widened to f32 and
// multiplied, in parallel. x [rows, in] f32 | bf16; bias [out] dtype of x or null; y [rows, out] f32 | bf16.
void tiled_product(ConstTensorView x, int64_t out, const WeightRows& weight, ConstTensorView bias,
                   TensorView y);
// Row of sums to row of y: adds the bias (widened) and rounds once.
void store_row(const float* sums, ConstTensorView bias, int64_t begin, int64_t end, TensorView y,
               int64_t row);

// y += product (f32), rounded once to the type of y (f32 | bf16).
void add_product(ConstTensorView product, TensorView y);

}  // namespace fewbit::cpu
