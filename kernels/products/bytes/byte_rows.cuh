#pragma once
// The kernels around 8-bit products on the GPU: the product of few rows of codes with a weight, and the way from the
// library's raw sums to y.
//
// Few rows: a warp owns two outputs and walks their weights 16 bytes a lane at a time, so that a weight is read once,
// at the memory's speed, whatever the rows; the rows' codes come from the cache. Each lane keeps a sum for every (row,
// output), in a fixed order; a butterfly adds the lanes.
#include <type_traits>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/grids/integer_grid.h"
#include "kernels/products/bytes/byte_product.cuh"

namespace fewbit::cuda::byte_product {

inline constexpr int kWarps = 4, kOutsOfWarp = 2;

// One value of y from its sum: sum * x_scale * scale + bias (+ y), each step rounded to f32, then once to Y.
template <class Sum, class Bias, class Y>
__device__ __forceinline__ void store_scaled(Sum sum, float x_scale, float w_scale, const Bias* bias, int64_t o, Y* y,
                                             bool add) {
  float value = mul_rn(mul_rn(static_cast<float>(sum), x_scale), w_scale);
  if (bias) value = add_rn(value, to_f32(bias[o]));
  if (add) value = add_rn(value, to_f32(*y));
  *y = from_f32<Y>(value);
}

// Dot gives the type of a sum and how products are added to one: of 16 bytes, and of a single byte.
//   using Sum; static Sum dot16(uint4 x, uint4 w, Sum); static Sum dot1(uint8_t x, uint8_t w, Sum)
// `vectors`: rows of x and w begin at multiples of 16 bytes.
template <class Dot, int kRows, class Bias, class Y>
__global__ void __launch_bounds__(kWarps * 32)
    few_rows_kernel(const uint8_t* __restrict__ x, const float* __restrict__ x_scales, const uint8_t* __restrict__ w,
                    const float* __restrict__ w_scales, const Bias* __restrict__ bias, Y* __restrict__ y, int rows,
                    int64_t in, int64_t out, bool vectors, bool add) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t o0 = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kOutsOfWarp;
  if (o0 >= out) return;
  typename Dot::Sum sums[kRows][kOutsOfWarp] = {};
  // The last output may be the only one: its twin is then read again and not stored.
  const uint8_t* rows_of_w[kOutsOfWarp] = {w + o0 * in, w + (o0 + 1 < out ? o0 + 1 : o0) * in};
  const int64_t whole = vectors ? in / 16 * 16 : 0;
  for (int64_t i = lane * 16; i < whole; i += 32 * 16) {
    uint4 weights[kOutsOfWarp];
#pragma unroll
    for (int k = 0; k < kOutsOfWarp; ++k) weights[k] = __ldg(reinterpret_cast<const uint4*>(rows_of_w[k] + i));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const uint4 codes = __ldg(reinterpret_cast<const uint4*>(x + r * in + i));
#pragma unroll
      for (int k = 0; k < kOutsOfWarp; ++k) sums[r][k] = Dot::dot16(codes, weights[k], sums[r][k]);
    }
  }
  for (int64_t i = whole + lane; i < in; i += 32)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int k = 0; k < kOutsOfWarp; ++k) sums[r][k] = Dot::dot1(x[r * in + i], rows_of_w[k][i], sums[r][k]);
    }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
#pragma unroll
    for (int k = 0; k < kOutsOfWarp; ++k) {
      const auto sum = warp_sum(sums[r][k]);
      if (lane == 0 && o0 + k < out)
        store_scaled(sum, x_scales[r], w_scales[o0 + k], bias, o0 + k, y + r * out + o0 + k, add);
    }
  }
}

// Calls f(Type<Bias>{}, Type<Y>{}).
template <class F>
void dispatch_bias_and_y(const Task& t, F&& f) {
  dispatch_f32_bf16(t.bias_dtype, [&](auto bias) { dispatch_f32_bf16(t.y_dtype, [&](auto y) { f(bias, y); }); });
}

// y of t's codes, for at most kFewByteRows rows.
template <class Dot>
void launch_few_rows(cudaStream_t stream, const Task& t) {
  const bool vectors = t.in % 16 == 0 && aligned16(t.w) && aligned16(t.x);
  const unsigned blocks = static_cast<unsigned>((t.out + kWarps * kOutsOfWarp - 1) / (kWarps * kOutsOfWarp));
  dispatch_bias_and_y(t, [&](auto bias, auto y) {
    using Bias = typename decltype(bias)::type;
    using Y = typename decltype(y)::type;
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kWarps * 32, 0, stream>>>(t.x, t.x_scales, t.w, t.w_scales, static_cast<const Bias*>(t.bias),
                                                 static_cast<Y*>(t.y), static_cast<int>(t.rows), t.in, t.out, vectors,
                                                 t.add);
    };
    if (t.rows == 1) return launch(few_rows_kernel<Dot, 1, Bias, Y>);
    if (t.rows <= 4) return launch(few_rows_kernel<Dot, 4, Bias, Y>);
    launch(few_rows_kernel<Dot, 16, Bias, Y>);
  });
  FEWBIT_CUDA_LAUNCHED();
}

inline constexpr int kScaleThreads = 256, kScaleSpan = 4 * kScaleThreads;  // outputs of a block

// y from raw sums [rows, out]. `low`: null, or sums [rows, out] over the low terms of x, which were multiplied by
// kLowTermFactor (fp8_unrounded_cuda.cu).
template <class Sum, class Bias, class Y>
__global__ void __launch_bounds__(kScaleThreads)
    scale_sums_kernel(const Sum* __restrict__ sums, const Sum* __restrict__ low, const float* __restrict__ x_scales,
                      const float* __restrict__ w_scales, const Bias* __restrict__ bias, Y* __restrict__ y, int64_t out,
                      bool add) {
  const int64_t r = blockIdx.x;
#pragma unroll
  for (int i = 0; i < kScaleSpan / kScaleThreads; ++i) {
    const int64_t o = static_cast<int64_t>(blockIdx.y) * kScaleSpan + i * kScaleThreads + threadIdx.x;
    if (o >= out) return;
    Sum sum = sums[r * out + o];
    if constexpr (std::is_same_v<Sum, float>)
      if (low) sum = fmaf(low[r * out + o], 1.f / kLowTermFactor, sum);
    store_scaled(sum, x_scales[r], w_scales[o], bias, o, y + r * out + o, add);
  }
}

template <class Sum>
void scale_sums(cudaStream_t stream, const Sum* sums, const Task& t, const Sum* low = nullptr) {
  dispatch_bias_and_y(t, [&](auto bias, auto y) {
    using Bias = typename decltype(bias)::type;
    using Y = typename decltype(y)::type;
    const dim3 grid(static_cast<unsigned>(t.rows), static_cast<unsigned>((t.out + kScaleSpan - 1) / kScaleSpan));
    scale_sums_kernel<<<grid, kScaleThreads, 0, stream>>>(
        sums, low, t.x_scales, t.w_scales, static_cast<const Bias*>(t.bias), static_cast<Y*>(t.y), t.out, t.add);
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda::byte_product
