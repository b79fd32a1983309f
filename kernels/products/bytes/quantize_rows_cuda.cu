// Rows to 8-bit codes, or to f16 under a power of two, where the kernel of prepare_rows.cuh does not take them. A block
// takes a row (or a group of one): one pass for its largest magnitude, which is exact in any order, and one for the
// codes, whose read comes from the cache. Bound by the one read from memory.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/grids/row_grid.h"
#include "kernels/model/cast.h"
#include "kernels/products/bytes/prepare_rows.cuh"
#include "kernels/products/dense.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

// Groups of up to `most` of the `in` values of a row, in the order of the rows.
struct Groups {
  int64_t count, of_row, most, in;
};
// A group's first element and its elements.
struct Group {
  int64_t at, n;
  __device__ Group(const Groups& g, int64_t number) {
    const int64_t first = number % g.of_row * g.most;
    at = number / g.of_row * g.in + first;
    n = g.most < g.in - first ? g.most : g.in - first;
  }
};

// Every thread gets the largest of what the block's threads have.
__device__ float largest_of(float most) {
  __shared__ float warps[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) most = larger_abs(most, __shfl_xor_sync(0xffffffffu, most, lane));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
  __syncthreads();
  most = warps[0];
  for (int w = 1; w < kThreads / 32; ++w) most = larger_abs(most, warps[w]);
  return most;
}

// Every thread gets the largest magnitude of x[0, n).
template <class T>
__device__ float largest_of(const T* __restrict__ x, int64_t n) {
  float most = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) most = larger_abs(most, to_f32(x[i]));
  return largest_of(most);
}

// Every thread gets the scale of x[0, n).
template <DType kCodes, class T>
__device__ float scale_of(const T* __restrict__ x, int64_t n, float fixed) {
  const float most = largest_of(x, n);
  if constexpr (kCodes == DType::f16) return f16_row_scale(most);
  return row_scale(most, fixed, kCodes == DType::f8_e4m3 ? kF8Max : 127.f);
}

template <DType kCodes, class T, class Code>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const T* __restrict__ x,     // [rows, in]
                                                            Code* __restrict__ codes,    // [rows, in]
                                                            float* __restrict__ scales,  // [rows, groups.of_row]
                                                            Groups groups, float fixed) {
  allow_successor();
  await_predecessor();
  const auto [at, n] = Group(groups, blockIdx.x);
  const float scale = scale_of<kCodes>(x + at, n, fixed), inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float scaled = mul_rn(to_f32(x[at + i]), inverse);
    if constexpr (kCodes == DType::f16)
      codes[at + i] = __float2half_rn(scaled);
    else
      codes[at + i] =
          kCodes == DType::f8_e4m3 ? f8_code(scaled) : static_cast<uint8_t>(static_cast<int>(int8_level(scaled)));
  }
}

template <class T, class Y, bool kF8>
__global__ void __launch_bounds__(kThreads) round_kernel(const T* x,  // [rows, in]; may be y
                                                         Y* y,        // [rows, in]
                                                         Groups groups, float fixed) {
  const auto [at, n] = Group(groups, blockIdx.x);
  const float scale = scale_of < kF8 ? DType::f8_e4m3 : DType::i8 > (x + at, n, fixed), inverse = 1.f / scale;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float scaled = mul_rn(to_f32(x[at + i]), inverse);
    y[at + i] = from_f32<Y>(mul_rn(kF8 ? f8_round(scaled) : int8_level(scaled), scale));
  }
}

// The same of whole bf16 rows, which calibration rounds by the hundreds of gigabytes: eight values a load, and what a
// thread has read stays in its registers until the scale is known.
constexpr int kHeld = 8;
constexpr int64_t kMostHeld = int64_t{kHeld} * kThreads * kVec16<__nv_bfloat16>;

template <bool kF8>
__global__ void __launch_bounds__(kThreads) round_held_kernel(const __nv_bfloat16* x,  // [rows, in]; may be y
                                                              __nv_bfloat16* y,        // [rows, in]
                                                              int64_t in, float fixed) {
  constexpr int kN = kVec16<__nv_bfloat16>;
  x += blockIdx.x * in, y += blockIdx.x * in;
  Vec<__nv_bfloat16, kN> held[kHeld];
  float most = 0;
#pragma unroll
  for (int v = 0; v < kHeld; ++v)
    if (const int64_t i = (int64_t{v} * kThreads + threadIdx.x) * kN; i < in)
      held[v] = load_vec<__nv_bfloat16, kN>(x + i);
#pragma unroll
  for (int v = 0; v < kHeld; ++v)
    if ((int64_t{v} * kThreads + threadIdx.x) * kN < in)
      for (int k = 0; k < kN; ++k) most = larger_abs(most, to_f32(held[v][k]));
  const float scale = row_scale(largest_of(most), fixed, kF8 ? kF8Max : 127.f), inverse = 1.f / scale;
#pragma unroll
  for (int v = 0; v < kHeld; ++v)
    if (const int64_t i = (int64_t{v} * kThreads + threadIdx.x) * kN; i < in) {
      for (int k = 0; k < kN; ++k) {
        const float scaled = mul_rn(to_f32(held[v][k]), inverse);
        held[v][k] = from_f32<__nv_bfloat16>(mul_rn(kF8 ? f8_round(scaled) : int8_level(scaled), scale));
      }
      store_vec(y + i, held[v]);
    }
}

bool fits_held(ConstTensorView x, const void* y, DType y_dtype, const Groups& groups) {
  return x.dtype == DType::bf16 && y_dtype == DType::bf16 && groups.of_row == 1 && groups.in <= kMostHeld &&
         aligned16(x.as<__nv_bfloat16>(), groups.in) && aligned16(static_cast<const __nv_bfloat16*>(y), groups.in);
}

// The levels of one row between two turns, in shared memory: the stages of kernels/model/hadamard_cpu.cpp in their
// order, so that the codes are the same.
__device__ void turn_row(float* x, int64_t n, int run) {
  const float scale = 1 / std::sqrt(static_cast<float>(run));
  for (int half = 1; half < run; half *= 2) {
    __syncthreads();
    for (int64_t pair = threadIdx.x; pair < n / 2; pair += kThreads) {
      const int64_t first = pair / half * 2 * half + pair % half;
      const float u = x[first], v = x[first + half];
      x[first] = u + v;
      x[first + half] = u - v;
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += kThreads) x[i] *= scale;
  __syncthreads();
}

// Of int4 levels, or of a turned row: a block has a row in shared memory.
template <class T, class Y>
__global__ void __launch_bounds__(kThreads)
    round_whole_kernel(const T* x,  // [rows, in]; may be y
                       Y* y,        // [rows, in]
                       int64_t in, int bits, bool f8, int turn, float fixed, int reach) {
  extern __shared__ float row[];
  x += blockIdx.x * in, y += blockIdx.x * in;
  for (int64_t i = threadIdx.x; i < in; i += kThreads) row[i] = to_f32(x[i]);
  __syncthreads();
  if (turn > 0) turn_row(row, in, turn);
  const float steps = bits == 4 ? kInt4Steps : 127.f;
  const float most = reached(largest_of(row, in), reach);
  const float scale = row_scale(most, fixed, f8 ? kF8Max : steps), inverse = 1.f / scale;
  for (int64_t i = threadIdx.x; i < in; i += kThreads) {
    const float scaled = mul_rn(row[i], inverse);
    row[i] = mul_rn(f8 ? f8_round(scaled) : bits == 4 ? int4_level(scaled) : int8_level(scaled), scale);
  }
  __syncthreads();
  if (turn > 0) turn_row(row, in, turn);
  for (int64_t i = threadIdx.x; i < in; i += kThreads) y[i] = from_f32<Y>(row[i]);
}

// A thread takes a group of at most kMostFp4Group values, and its second read of them comes from the cache.
template <class T, class Y>
__global__ void __launch_bounds__(kThreads) round_fp4_kernel(const T* x,  // [rows, in]; may be y
                                                             Y* y,        // [rows, in]
                                                             Groups groups, float fixed, DType scales) {
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (number >= groups.count) return;
  const auto [at, n] = Group(groups, number);
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = larger_abs(most, to_f32(x[at + i]));
  const float scale = fp4_group_scale(most, fixed, scales);
  for (int64_t i = 0; i < n; ++i) y[at + i] = from_f32<Y>(fp4_value(to_f32(x[at + i]), scale));
}

Groups groups_of(ConstTensorView x, const RowQuant& q) {
  FEWBIT_ASSERT(q.codes == DType::i8 || q.codes == DType::f8_e4m3 || q.codes == DType::f16 || is_fp4(q));
  const int64_t n = q.group > 0 ? q.group : x.cols();
  FEWBIT_ASSERT(n > 0);
  const int64_t of_row = (x.cols() + n - 1) / n, count = x.numel() / x.cols() * of_row;
  FEWBIT_ASSERT(count < (int64_t{1} << 31));
  return {count, of_row, n, x.cols()};
}

// Rows of at most 56 thousand values.
template <class T, class Y>
void launch_round_whole(CudaState& s, const T* x, Y* y, const Groups& groups, const RowQuant& q) {
  FEWBIT_ASSERT(groups.of_row == 1 && (q.turn == 0 || groups.in % q.turn == 0));
  const auto bytes = static_cast<int>(groups.in * 4);
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(round_whole_kernel<T, Y>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  round_whole_kernel<T, Y><<<static_cast<unsigned>(groups.count), kThreads, bytes, s.stream>>>(
      x, y, groups.in, q.bits, q.codes == DType::f8_e4m3, static_cast<int>(q.turn), q.fixed, q.reach);
}

void launch_round_rows(CudaState& s, ConstTensorView x, const RowQuant& q, void* y, DType y_dtype) {
  FEWBIT_ASSERT(q.codes != DType::f16 && (q.reach == 100 || (q.bits == 4 && q.reach > 0 && q.reach < 100)));
  const Groups groups = groups_of(x, q);
  if (groups.count == 0) return;
  const unsigned blocks = static_cast<unsigned>(groups.count);
  if (!q.only_values() && fits_held(x, y, y_dtype, groups)) {
    const auto kernel = q.codes == DType::f8_e4m3 ? round_held_kernel<true> : round_held_kernel<false>;
    kernel<<<blocks, kThreads, 0, s.stream>>>(x.as<__nv_bfloat16>(), static_cast<__nv_bfloat16*>(y), groups.in,
                                              q.fixed);
    FEWBIT_CUDA_LAUNCHED();
    return;
  }
  dispatch_f32_bf16(x.dtype, [&](auto in) {
    dispatch_f32_bf16(y_dtype, [&](auto out) {
      using T = typename decltype(in)::type;
      using Y = typename decltype(out)::type;
      if (is_fp4(q))
        round_fp4_kernel<T, Y><<<(blocks + kThreads - 1) / kThreads, kThreads, 0, s.stream>>>(
            x.as<T>(), static_cast<Y*>(y), groups, q.fixed, q.scales);
      else if (q.only_values())
        launch_round_whole(s, x.as<T>(), static_cast<Y*>(y), groups, q);
      else if (q.codes == DType::f8_e4m3)
        round_kernel<T, Y, true><<<blocks, kThreads, 0, s.stream>>>(x.as<T>(), static_cast<Y*>(y), groups, q.fixed);
      else
        round_kernel<T, Y, false><<<blocks, kThreads, 0, s.stream>>>(x.as<T>(), static_cast<Y*>(y), groups, q.fixed);
    });
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace

void launch_quantize_rows(CudaState& s, ConstTensorView x, const RowQuant& q, void* codes, float* scales) {
  if (prepare_rows::fits({.x = x}, q) && aligned16(static_cast<const uint8_t*>(codes)))
    return prepare_rows::launch(s, {.x = x}, q, codes, scales);
  const Groups groups = groups_of(x, q);
  if (groups.count == 0) return;
  const unsigned blocks = static_cast<unsigned>(groups.count);
  dispatch_f32_bf16(x.dtype, [&](auto in) {
    using T = typename decltype(in)::type;
    const auto launch = [&](auto* kernel, auto* to) {
      launch_overlapping(s, kernel, dim3(blocks), dim3(kThreads), 0, x.as<T>(), to, scales, groups, q.fixed);
    };
    if (q.codes == DType::f16)
      launch(quantize_kernel<DType::f16, T, __half>, static_cast<__half*>(codes));
    else
      launch(q.codes == DType::f8_e4m3 ? quantize_kernel<DType::f8_e4m3, T, uint8_t>
                                       : quantize_kernel<DType::i8, T, uint8_t>,
             static_cast<uint8_t*>(codes));
  });
}

void quantize_rows(Exec& ex, ConstTensorView x, const RowQuant& q, TensorView codes, TensorView scales) {
  FEWBIT_ASSERT(codes.shape == x.shape && codes.dtype == q.codes && scales.dtype == DType::f32 && !q.only_values());
  FEWBIT_ASSERT(scales.numel() == groups_of(x, q).count);
  launch_quantize_rows(ex.cuda_state(), x, q, codes.data, scales.as<float>());
}

void round_rows(Exec& ex, ConstTensorView x, const RowQuant& q, TensorView y) {
  FEWBIT_ASSERT(y.shape == x.shape);
  launch_round_rows(ex.cuda_state(), x, q, y.data, y.dtype);
}

void rounded_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, ConstTensorView w, ConstTensorView bias,
                  TensorView y) {
  const int64_t rows = x.rows(), out = w.rows();
  FEWBIT_ASSERT((w.dtype == x.dtype || w.dtype == DType::f32) && w.cols() == x.cols());
  FEWBIT_ASSERT((y.dtype == x.dtype || y.dtype == DType::f32) && y.rows() == rows && y.cols() == out);
  if (rows == 0 || out == 0) return;
  CudaState& s = ex.cuda_state();
  const bool narrows = y.dtype != DType::f32 &&
                       y.dtype != w.dtype;  // the product's sums go to scratch memory in f32 and are rounded from there
  // Scratch memory and not tensors: a recorded decode step must not allocate.
  const int64_t bytes = (x.numel() * bytes_of(w.dtype) + 255) / 256 * 256;
  auto* rounded = static_cast<char*>(s.scratch(static_cast<size_t>(bytes + (narrows ? 4 * y.numel() : 0))));
  launch_round_rows(s, x, q, rounded, w.dtype);
  TensorView sums = y;
  if (narrows) sums = {rounded + bytes, DType::f32, y.shape, y.device};
  if (bias.data) {
    FEWBIT_ASSERT(bias.numel() == out && bias.dtype == w.dtype);
    lay_bias(s, bias, sums);
  }
  dense_product(s, {.x = rounded,
                    .w = w.data,
                    .y = sums.data,
                    .in_dtype = w.dtype,
                    .y_dtype = sums.dtype,
                    .rows = rows,
                    .in = x.cols(),
                    .out = out,
                    .y_stride = out,
                    .add = bias.data != nullptr});
  if (narrows) cuda::cast(ex, sums, y);
}

}  // namespace fewbit::cuda
