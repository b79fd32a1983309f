#pragma once
// What the products of 8-bit codes share on the GPU: few rows of x by a kernel of our own, the library's product for
// many, and the way from sums to y.
//
// Few rows: a warp owns two outputs and walks their weights 16 bytes a lane at a time, so that a weight is read once
// and at the memory's speed whatever the rows; the rows' codes come from the cache. Each lane keeps a sum per (row,
// output), in a fixed order; a butterfly adds the lanes.
#include <algorithm>

#include "kernels/exec_cuda.h"
#include "kernels/int8_gemm.h"
#include "kernels/integer_grid.h"
#include "kernels/quantize_rows.cuh"
#include "kernels/reduce.cuh"
#include "kernels/vec.cuh"

namespace fewbit::cuda {

inline constexpr int64_t kFewByteRows = 16;
inline constexpr int kByteWarps = 4, kByteOuts = 2;

// One product as raw device memory: codes of x and of the weight, their scales, and y.
struct ByteTask {
  const uint8_t* x = nullptr;        // [rows, in]
  const float* x_scales = nullptr;   // [rows]
  const uint8_t* w = nullptr;        // [out, in]
  const float* w_scales = nullptr;   // [out]
  const void* bias = nullptr;        // [out] of bias_dtype, or null
  void* y = nullptr;                 // [rows, out] of y_dtype
  bool add = false;                  // y += the product
  DType bias_dtype = DType::bf16, y_dtype = DType::bf16;
  int64_t rows = 0, in = 0, out = 0;
};

template <class Sum, class Bias, class Y>
__device__ __forceinline__ void store_scaled(Sum sum, float x_scale, float w_scale, const Bias* bias, int64_t o, Y* y,
                                             bool add) {
  float value = mul_rn(mul_rn(static_cast<float>(sum), x_scale), w_scale);
  if (bias) value = add_rn(value, to_f32(bias[o]));
  if (add) value = add_rn(value, to_f32(*y));
  *y = from_f32<Y>(value);
}

// Code gives the type of a sum, a product of 16 bytes and one of a single byte:
//   using Sum; static Sum dot16(uint4 x, uint4 w, Sum); static Sum dot1(uint8_t x, uint8_t w, Sum)
template <class Code, int kRows, class Bias, class Y>
__global__ void __launch_bounds__(kByteWarps * 32)
    few_rows_kernel(const uint8_t* __restrict__ x, const float* __restrict__ x_scales,
                    const uint8_t* __restrict__ w, const float* __restrict__ w_scales,
                    const Bias* __restrict__ bias, Y* __restrict__ y, int rows, int64_t in, int64_t out,
                    bool vectors, bool add) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t o0 = (static_cast<int64_t>(blockIdx.x) * kByteWarps + warp) * kByteOuts;
  if (o0 >= out) return;
  typename Code::Sum sums[kRows][kByteOuts] = {};
  // The last output may be the only one: its twin is then read again and not stored.
  const uint8_t* rows_of_w[kByteOuts] = {w + o0 * in, w + (o0 + 1 < out ? o0 + 1 : o0) * in};
  const int64_t whole = vectors ? in / 16 * 16 : 0;
  for (int64_t i = lane * 16; i < whole; i += 32 * 16) {
    uint4 weights[kByteOuts];
#pragma unroll
    for (int k = 0; k < kByteOuts; ++k) weights[k] = __ldg(reinterpret_cast<const uint4*>(rows_of_w[k] + i));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const uint4 codes = __ldg(reinterpret_cast<const uint4*>(x + r * in + i));
#pragma unroll
      for (int k = 0; k < kByteOuts; ++k) sums[r][k] = Code::dot16(codes, weights[k], sums[r][k]);
    }
  }
  for (int64_t i = whole + lane; i < in; i += 32)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int k = 0; k < kByteOuts; ++k)
        sums[r][k] = Code::dot1(x[r * in + i], rows_of_w[k][i], sums[r][k]);
    }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
#pragma unroll
    for (int k = 0; k < kByteOuts; ++k) {
      const auto sum = warp_sum(sums[r][k]);
      if (lane == 0 && o0 + k < out)
        store_scaled(sum, x_scales[r], w_scales[o0 + k], bias, o0 + k, y + r * out + o0 + k, add);
    }
  }
}

// Calls f(Type<Bias>{}, Type<Y>{}).
template <class F>
void dispatch_bias_and_y(const ByteTask& t, F&& f) {
  dispatch_f32_bf16(t.bias_dtype, [&](auto bias) { dispatch_f32_bf16(t.y_dtype, [&](auto y) { f(bias, y); }); });
}

// At most kFewByteRows rows.
template <class Code>
void launch_few_rows(cudaStream_t stream, const ByteTask& t) {
  const bool vectors = t.in % 16 == 0 && aligned16(t.w) && aligned16(t.x);
  const unsigned blocks = static_cast<unsigned>((t.out + kByteWarps * kByteOuts - 1) / (kByteWarps * kByteOuts));
  dispatch_bias_and_y(t, [&](auto bias, auto y) {
    using Bias = typename decltype(bias)::type;
    using Y = typename decltype(y)::type;
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kByteWarps * 32, 0, stream>>>(t.x, t.x_scales, t.w, t.w_scales,
                                                     static_cast<const Bias*>(t.bias), static_cast<Y*>(t.y),
                                                     static_cast<int>(t.rows), t.in, t.out, vectors, t.add);
    };
    if (t.rows == 1) return launch(few_rows_kernel<Code, 1, Bias, Y>);
    if (t.rows <= 4) return launch(few_rows_kernel<Code, 4, Bias, Y>);
    launch(few_rows_kernel<Code, 16, Bias, Y>);
  });
  FEWBIT_CUDA_LAUNCHED();
}

template <class Sum, class Bias, class Y>
__global__ void scale_sums_kernel(const Sum* __restrict__ sums, const float* __restrict__ x_scales,
                                  const float* __restrict__ w_scales, const Bias* __restrict__ bias,
                                  Y* __restrict__ y, int64_t out, bool add) {
  const int64_t r = blockIdx.x;
  for (int64_t o = threadIdx.x; o < out; o += blockDim.x)
    store_scaled(sums[r * out + o], x_scales[r], w_scales[o], bias, o, y + r * out + o, add);
}

// y from the raw sums of a library's product, [rows, out].
template <class Sum>
void scale_sums(cudaStream_t stream, const Sum* sums, const ByteTask& t) {
  dispatch_bias_and_y(t, [&](auto bias, auto y) {
    using Bias = typename decltype(bias)::type;
    using Y = typename decltype(y)::type;
    scale_sums_kernel<<<static_cast<unsigned>(t.rows), 256, 0, stream>>>(
        sums, t.x_scales, t.w_scales, static_cast<const Bias*>(t.bias), static_cast<Y*>(t.y), t.out, t.add);
  });
  FEWBIT_CUDA_LAUNCHED();
}

// Whether cuBLASLt takes 8-bit matrices of this shape; it wants rows of 16 bytes.
inline bool library_takes(const ByteTask& t) {
  return t.in % 16 == 0 && t.out % 16 == 0 && aligned16(t.w) && aligned16(t.x);
}

// sums [rows, out] = x w^T by cuBLASLt. False where it has no algorithm for the shape; nothing was done then.
struct LibraryTypes {
  cudaDataType_t codes, sums, scale;
  cublasComputeType_t compute;
};
bool library_product(CudaState& s, const LibraryTypes& types, const ByteTask& t, void* sums);

// Scratch that a product of many rows needs besides the codes and the sums.
struct ByteRoom {
  int64_t fixed = 0, per_row = 0;  // bytes
};
inline int64_t aligned_bytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Quantizes x and calls few(task) for up to kFewByteRows rows, or many(task, sums, room) for more, in chunks of rows
// so that the scratch stays bounded: sums of 4 bytes for [rows, out], then the room asked for.
template <class Few, class Many>
void for_row_chunks(CudaState& s, ConstTensorView x, const RowQuant& q, const ByteTask& task, const ByteRoom& room,
                    const Few& few, const Many& many) {
  constexpr int64_t kChunkBytes = int64_t{128} << 20;
  const int64_t rows = task.rows, in = task.in, out = task.out;
  const int64_t chunk =
      std::min(rows, std::max<int64_t>(256, kChunkBytes / (in + 4 * out + room.per_row)));
  for (int64_t r = 0; r < rows; r += chunk) {
    const int64_t n = std::min(chunk, rows - r);
    const int64_t codes = aligned_bytes(n * in), scales = aligned_bytes(4 * n), sums = aligned_bytes(4 * n * out);
    const int64_t more = n <= kFewByteRows ? 0 : sums + aligned_bytes(room.fixed) + n * room.per_row;
    auto* base = static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + scales + more)));
    ByteTask part = task;
    part.x = base;
    part.x_scales = reinterpret_cast<const float*>(base + codes);
    part.rows = n;
    part.y = static_cast<char*>(task.y) + r * out * bytes_of(task.y_dtype);
    launch_quantize_rows(s, x.row_range(r, r + n), q, base, reinterpret_cast<float*>(base + codes));
    if (n <= kFewByteRows)
      few(part);
    else
      many(part, base + codes + scales, base + codes + scales + sums);
  }
}

// Checks shapes and types and fills in what does not depend on the rows.
inline ByteTask make_byte_task(ConstTensorView x, const ByteProduct& p) {
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

// The products of kernels/int8_gemm.h and kernels/fp8_gemm.h where skinny.cuh does not take them; `task` from
// make_byte_task(), not empty.
void int8_product(CudaState& s, ConstTensorView x, const RowQuant& q, const ByteTask& task);
void fp8_product(CudaState& s, ConstTensorView x, const RowQuant& q, const ByteTask& task);
// y = x W^T + bias, or y += x W^T, of E4M3 weights and x as it is: the weight becomes code * scale in the type of x, a slab
// of outputs at a time, for a dense product.
void unrounded_product(CudaState& s, ConstTensorView x, const ByteProduct& p);

}  // namespace fewbit::cuda
