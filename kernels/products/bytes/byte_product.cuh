#pragma once
// What the products of 8-bit codes share on the GPU: few rows of x by a kernel of our own, the library's product for
// many, and the way from sums to y.
//
// Few rows: a warp owns two outputs and walks their weights 16 bytes a lane at a time, so that a weight is read once
// and at the memory's speed whatever the rows; the rows' codes come from the cache. Each lane keeps a sum per (row,
// output), in a fixed order; a butterfly adds the lanes.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/products/bytes/int8_gemm.h"
#include "kernels/products/bytes/prepare_rows.cuh"

namespace fewbit::cuda {

// between them the library has the shapes that it takes
inline constexpr int64_t kFewByteRows = 16, kLeastLibraryRows = 9;
inline constexpr int kByteWarps = 4, kByteOuts = 2;
inline constexpr float kLowerDigit = 16;  // of x in two digits of E4M3: what the lower one is multiplied by

// One product as raw device memory: codes of x and of the weight, their scales, and y.
struct ByteTask {
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
    few_rows_kernel(const uint8_t* __restrict__ x, const float* __restrict__ x_scales, const uint8_t* __restrict__ w,
                    const float* __restrict__ w_scales, const Bias* __restrict__ bias, Y* __restrict__ y, int rows,
                    int64_t in, int64_t out, bool vectors, bool add) {
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
      for (int k = 0; k < kByteOuts; ++k) sums[r][k] = Code::dot1(x[r * in + i], rows_of_w[k][i], sums[r][k]);
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
      kernel<<<blocks, kByteWarps * 32, 0, stream>>>(t.x, t.x_scales, t.w, t.w_scales, static_cast<const Bias*>(t.bias),
                                                     static_cast<Y*>(t.y), static_cast<int>(t.rows), t.in, t.out,
                                                     vectors, t.add);
    };
    if (t.rows == 1) return launch(few_rows_kernel<Code, 1, Bias, Y>);
    if (t.rows <= 4) return launch(few_rows_kernel<Code, 4, Bias, Y>);
    launch(few_rows_kernel<Code, 16, Bias, Y>);
  });
  FEWBIT_CUDA_LAUNCHED();
}

inline constexpr int kScaleThreads = 256, kScaleSpan = 4 * kScaleThreads;  // outputs of a block

// `lower`: null, or sums over x's lower digits, 1 / kLowerDigit of their worth.
template <class Sum, class Bias, class Y>
__global__ void __launch_bounds__(kScaleThreads)
    scale_sums_kernel(const Sum* __restrict__ sums, const Sum* __restrict__ lower, const float* __restrict__ x_scales,
                      const float* __restrict__ w_scales, const Bias* __restrict__ bias, Y* __restrict__ y, int64_t out,
                      bool add) {
  const int64_t r = blockIdx.x;
#pragma unroll
  for (int i = 0; i < kScaleSpan / kScaleThreads; ++i) {
    const int64_t o = static_cast<int64_t>(blockIdx.y) * kScaleSpan + i * kScaleThreads + threadIdx.x;
    if (o >= out) return;
    Sum sum = sums[r * out + o];
    if constexpr (std::is_same_v<Sum, float>)
      if (lower) sum = fmaf(lower[r * out + o], 1.f / kLowerDigit, sum);
    store_scaled(sum, x_scales[r], w_scales[o], bias, o, y + r * out + o, add);
  }
}

// y from the raw sums of a library's product, [rows, out].
template <class Sum>
void scale_sums(cudaStream_t stream, const Sum* sums, const ByteTask& t, const Sum* lower = nullptr) {
  dispatch_bias_and_y(t, [&](auto bias, auto y) {
    using Bias = typename decltype(bias)::type;
    using Y = typename decltype(y)::type;
    const dim3 grid(static_cast<unsigned>(t.rows), static_cast<unsigned>((t.out + kScaleSpan - 1) / kScaleSpan));
    scale_sums_kernel<<<grid, kScaleThreads, 0, stream>>>(
        sums, lower, t.x_scales, t.w_scales, static_cast<const Bias*>(t.bias), static_cast<Y*>(t.y), t.out, t.add);
  });
  FEWBIT_CUDA_LAUNCHED();
}

// Whether cuBLASLt takes 8-bit matrices of this shape; it wants rows of 16 bytes.
inline bool library_takes(const ByteTask& t) { return t.in % 16 == 0 && t.out % 16 == 0 && aligned16(t.w); }

// Whether its product of E4M3 codes by rows and outputs scaled takes this one: compute capability 9.0 alone. Of fewer
// rows the raw sums are few, and the library can cut a long sum in parts.
inline constexpr int64_t kLeastScaledRows = 256;
inline bool library_scales(const CudaState& s, const ByteTask& t) {
  return s.sm90() && t.rows >= kLeastScaledRows && aligned16(t.w_scales) && aligned16(static_cast<const char*>(t.y));
}

// A product of 8-bit codes by cuBLASLt, ready to run for one number of rows; false where it has none.
struct LibraryTypes {
  cudaDataType_t codes, sums, scale;
  cublasComputeType_t compute;
};
inline constexpr LibraryTypes kF8Sums{CUDA_R_8F_E4M3, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
inline bool fp8_tensor_cores(const CudaState& s) {
  return !s.force_sm80 && (s.props.major > 8 || (s.props.major == 8 && s.props.minor == 9));
}
class LibraryProduct {
 public:
  // sums [rows, out] = x w^T.
  static LibraryProduct raw(CudaState& s, const LibraryTypes& types, const ByteTask& t);
  // y as store_scaled() makes it, of E4M3 codes.
  static LibraryProduct scaled(CudaState& s, const ByteTask& t);

  explicit operator bool() const { return algorithm_.has_value(); }
  bool scales() const { return scales_; }
  // `t` of the shape that it was made for, with x where scratch memory has it; `to` is t.y, or room for the sums.
  void run(CudaState& s, const ByteTask& t, void* to) const;

 private:
  struct Destroy {
    void operator()(cublasLtMatmulDesc_t p) const { cublasLtMatmulDescDestroy(p); }
    void operator()(cublasLtMatrixLayout_t p) const { cublasLtMatrixLayoutDestroy(p); }
  };
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

  LibraryProduct(CudaState& s, const LibraryTypes& types, const ByteTask& t, bool scales);
  Owned<cublasLtMatmulDesc_t> product_;
  Owned<cublasLtMatrixLayout_t> w_, x_, y_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
  bool integer_ = false, scales_ = false;
};

inline int64_t aligned_bytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Makes the codes of x once and calls body(task, its number, room) for every product of them, in chunks of rows so
// that the scratch stays bounded; room_of(n) says how many bytes of room n rows want.
template <class Room, class Body>
void for_row_chunks(CudaState& s, const RowSource& source, const RowQuant& q, std::span<const ByteTask> tasks,
                    const Room& room_of, const Body& body) {
  constexpr int64_t kChunkBytes = int64_t{128} << 20;
  int64_t widest = 0;
  for (const ByteTask& t : tasks) widest = std::max(widest, t.out);
  const int64_t rows = tasks[0].rows, in = tasks[0].in;
  const int64_t chunk = std::min(rows, std::max<int64_t>(256, kChunkBytes / (in + 4 * widest)));
  for (int64_t r = 0; r < rows; r += chunk) {
    const int64_t n = std::min(chunk, rows - r);
    const int64_t codes = aligned_bytes(n * in), scales = aligned_bytes(4 * n);
    auto* base = static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + scales + room_of(n))));
    auto* x_scales = reinterpret_cast<float*>(base + codes);
    RowSource part = source;
    part.x = source.x.row_range(r, r + n);
    if (source.up.data) part.up = source.up.row_range(r, r + n);
    if (source.norm || source.up.data)
      launch_prepare_rows(s, part, q, base, x_scales);
    else
      launch_quantize_rows(s, part.x, q, base, x_scales);
    for (size_t i = 0; i < tasks.size(); ++i) {
      ByteTask t = tasks[i];
      t.x = base;
      t.x_scales = x_scales;
      t.rows = n;
      t.y = static_cast<char*>(t.y) + r * t.out * bytes_of(t.y_dtype);
      body(t, i, base + codes + scales);
    }
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

// The products of kernels/products/bytes/int8_gemm.h and kernels/products/bytes/fp8_gemm.h where skinny.cuh does not
// take them: of one x, whose codes are made once. Tasks from make_byte_task(), none empty; a norm or a gate only where
// prepares_rows() says so.
void int8_products(CudaState& s, const RowSource& source, const RowQuant& q, std::span<const ByteTask> tasks);
void fp8_products(CudaState& s, const RowSource& source, const RowQuant& q, std::span<const ByteTask> tasks);
// y = x W^T + bias, or y += x W^T, of E4M3 weights and x as it is (kernels/products/bytes/fp8_unrounded_cuda.cu).
void unrounded_products(CudaState& s, ConstTensorView x, std::span<const ByteProduct> products);
// kernels/products/bytes/byte_gemms.h for such a source; false, and nothing done, where the ops before must run by
// themselves.
bool prepared_byte_gemms(CudaState& s, const RowSource& source, const RowQuant& q,
                         std::span<const ByteProduct> products);

}  // namespace fewbit::cuda
