#pragma once
// What the products of 8-bit codes have in common on the GPU: the task of one product, and the loop over chunks of
// rows. Their kernels are in byte_rows.cuh, the library's product in library_product.cuh.
#include <algorithm>
#include <span>

#include "kernels/choice/kernel_choice.h"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/bytes/int8_gemm.h"
#include "kernels/products/bytes/prepare_rows.cuh"

namespace fewbit::cuda::byte_product {

// A bf16 value as the sum of two E4M3 terms (fp8_unrounded_cuda.cu): what the low term is multiplied by.
inline constexpr float kLowTermFactor = 16;

// One product as raw device memory: codes of x and of the weight, their scales, and y.
struct Task {
  const uint8_t* x = nullptr;       // [rows, in]
  const float* x_scales = nullptr;  // [rows]
  const uint8_t* w = nullptr;       // [out, in]
  const float* w_scales = nullptr;  // [out]
  const void* bias = nullptr;       // [out] of bias_dtype, or null
  void* y = nullptr;                // [rows, out] of y_dtype
  bool add = false;                 // y += the product
  DType bias_dtype = DType::bf16, y_dtype = DType::bf16;
  int64_t rows = 0, in = 0, out = 0;
};

// Checks shapes and types and fills in what does not depend on how x becomes codes.
inline Task make_task(ConstTensorView x, const ByteProduct& p) {
  const ByteWeightView& w = p.w;
  const int64_t out = w.codes.rows();
  FEWBIT_ASSERT(w.codes.cols() == x.cols() && w.scales.numel() == out && w.scales.dtype == DType::f32);
  FEWBIT_ASSERT(p.y.rows() == x.rows() && p.y.cols() == out && (p.y.dtype == x.dtype || p.y.dtype == DType::f32));
  FEWBIT_ASSERT(!p.bias.data || (p.bias.numel() == out && p.bias.dtype == x.dtype));
  return {.w = static_cast<const uint8_t*>(w.codes.data),
          .w_scales = w.scales.as<float>(),
          .bias = p.bias.data,
          .y = p.y.data,
          .add = p.add,
          .bias_dtype = x.dtype,
          .y_dtype = p.y.dtype,
          .rows = x.rows(),
          .in = x.cols(),
          .out = out};
}

// What kernels/choice/kernel_choice.h asks of a task. `codes`: the type that x has or will have, `made`: has already;
// `x`: its type before.
inline KernelProblem problem_of(const Task& t, DType x, DType codes, bool made) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return {.op = ChoiceOp::bytes,
          .x = x,
          .weight = codes == DType::i8 ? DType::i8 : DType::f8_e4m3,
          .codes = codes,
          .x_is_codes = made,
          .rows = t.rows,
          .in = t.in,
          .out = t.out,
          .aligned = aligned(t.w)};
}

inline int64_t aligned_bytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Makes the codes of x once and calls body(task, its number, room) for every product of them, in chunks of rows so that
// the scratch memory stays bounded; room_of(n) says how many bytes of room the products of n rows need.
template <class Room, class Body>
void for_row_chunks(CudaState& s, const prepare_rows::Source& source, const RowQuant& q, std::span<const Task> tasks,
                    const Room& room_of, const Body& body) {
  constexpr int64_t kChunkBytes = int64_t{128} << 20;
  int64_t widest = 0;
  for (const Task& t : tasks) widest = std::max(widest, t.out);
  const int64_t rows = tasks[0].rows, in = tasks[0].in;
  const int64_t chunk = std::min(rows, std::max<int64_t>(256, kChunkBytes / (in + 4 * widest)));
  for (int64_t r = 0; r < rows; r += chunk) {
    const int64_t n = std::min(chunk, rows - r);
    const int64_t codes = aligned_bytes(n * in), scales = aligned_bytes(4 * n);
    auto* base = static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + scales + room_of(n))));
    auto* x_scales = reinterpret_cast<float*>(base + codes);
    prepare_rows::Source chunk_source = source;
    chunk_source.x = source.x.row_range(r, r + n);
    if (source.up.data) chunk_source.up = source.up.row_range(r, r + n);
    if (source.norm || source.up.data)
      prepare_rows::launch(s, chunk_source, q, base, x_scales);
    else
      launch_quantize_rows(s, chunk_source.x, q, base, x_scales);
    for (size_t i = 0; i < tasks.size(); ++i) {
      Task t = tasks[i];
      t.x = base;
      t.x_scales = x_scales;
      t.rows = n;
      t.y = static_cast<char*>(t.y) + r * t.out * bytes_of(t.y_dtype);
      body(t, i, base + codes + scales);
    }
  }
}

// The products of kernels/products/bytes/int8_gemm.h and kernels/products/bytes/fp8_gemm.h where skinny.cuh does not
// take them, all of one x. Tasks from make_task(), none empty; a norm or a gate only where prepare_rows::fits().
void int8_products(CudaState& s, const prepare_rows::Source& source, const RowQuant& q, std::span<const Task> tasks);
void fp8_products(CudaState& s, const prepare_rows::Source& source, const RowQuant& q, std::span<const Task> tasks);
// kernels/products/bytes/byte_gemms.h for such a source; false, and nothing is done, where the norm or the activation
// must run by itself first.
bool try_prepared_gemms(CudaState& s, const prepare_rows::Source& source, const RowQuant& q,
                        std::span<const ByteProduct> products);

}  // namespace fewbit::cuda::byte_product

namespace fewbit::cuda::fp8_unrounded {

// y = x W^T + bias, or y += x W^T, of E4M3 weights and x as it is (fp8_unrounded_cuda.cu).
void products(CudaState& s, ConstTensorView x, std::span<const ByteProduct> products);

}  // namespace fewbit::cuda::fp8_unrounded
