// FP8 products: for few rows (kernels/products/bytes/byte_product.cuh) codes become floats in registers, which is cheap
// beside reading them; for many the FP8 tensor cores through cuBLASLt, or, where there are none, bf16 copies of the
// codes, which hold them exactly. The sums are f32 and scaled on the way to y: by the library itself on compute
// capability 9.0.
#include <optional>
#include <vector>

#include "kernels/grids/f8_grid.h"
#include "kernels/products/bytes/byte_product.cuh"
#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/dense.cuh"

namespace fewbit::cuda {
namespace {

struct F8Code {
  using Sum = float;
  static __device__ __forceinline__ float dot4(uint32_t x, uint32_t w, float sum) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum = fmaf(f8_value(static_cast<uint8_t>(x >> (8 * i))), f8_value(static_cast<uint8_t>(w >> (8 * i))), sum);
    return sum;
  }
  static __device__ __forceinline__ float dot16(uint4 x, uint4 w, float sum) {
    return dot4(x.w, w.w, dot4(x.z, w.z, dot4(x.y, w.y, dot4(x.x, w.x, sum))));
  }
  static __device__ __forceinline__ float dot1(uint8_t x, uint8_t w, float sum) {
    return fmaf(f8_value(x), f8_value(w), sum);
  }
};

constexpr int kThreads = 256;

__global__ void widen_kernel(const uint8_t* __restrict__ codes, __nv_bfloat16* __restrict__ values, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    values[i] = __float2bfloat16_rn(f8_value(codes[i]));
}

void widen(CudaState& s, const uint8_t* codes, void* values, int64_t n) {
  widen_kernel<<<grid_for(n, kThreads), kThreads, 0, s.stream>>>(codes, static_cast<__nv_bfloat16*>(values), n);
  FEWBIT_CUDA_LAUNCHED();
}

// sums = x w^T over bf16 copies of the codes in `room`: first the weight's, then those of x.
void widened_product(CudaState& s, const ByteTask& t, float* sums, uint8_t* room) {
  uint8_t* x = room + aligned_bytes(2 * t.out * t.in);
  widen(s, t.w, room, t.out * t.in);
  widen(s, t.x, x, t.rows * t.in);
  dense_product(s, {.x = x,
                    .w = room,
                    .y = sums,
                    .in_dtype = DType::bf16,
                    .y_dtype = DType::f32,
                    .rows = t.rows,
                    .in = t.in,
                    .out = t.out,
                    .y_stride = t.out});
}

}  // namespace

void fp8_products(CudaState& s, const RowSource& source, const RowQuant& q, std::span<const ByteTask> tasks) {
  const bool tensor_cores = fp8_tensor_cores(s);
  std::vector<std::optional<LibraryProduct>> library;  // of each task; nothing where it is multiplied in bf16
  const auto room_of = [&](int64_t rows) {
    int64_t most = 0;
    library.clear();
    for (ByteTask t : tasks) {
      t.rows = rows;
      std::optional<LibraryProduct>& made = library.emplace_back();
      if (rows < kLeastLibraryRows) continue;
      if (tensor_cores && library_takes(t)) {
        if (library_scales(s, t)) made.emplace(LibraryProduct::scaled(s, t));
        if (!made || !*made) made.emplace(LibraryProduct::raw(s, kF8Sums, t));
        if (!*made) made.reset();
      }
      if (made ? made->scales() : rows <= kFewByteRows) continue;
      const int64_t widened = made ? 0 : aligned_bytes(2 * t.out * t.in) + 2 * rows * t.in;
      most = std::max(most, aligned_bytes(4 * rows * t.out) + widened);
    }
    return most;
  };
  for_row_chunks(s, source, q, tasks, room_of, [&](const ByteTask& t, size_t i, uint8_t* room) {
    const std::optional<LibraryProduct>& product = library[i];
    if (!product && t.rows <= kFewByteRows) return launch_few_rows<F8Code>(s.stream, t);
    if (product && product->scales()) return product->run(s, t, t.y);
    auto* sums = reinterpret_cast<float*>(room);
    if (product)
      product->run(s, t, sums);
    else
      widened_product(s, t, sums, room + aligned_bytes(4 * t.rows * t.out));
    scale_sums(s.stream, sums, t);
  });
}

}  // namespace fewbit::cuda

namespace fewbit {

bool has_fp8_products(const Exec& ex) { return ex.on_cuda() && cuda::fp8_tensor_cores(ex.cuda_state()); }

}  // namespace fewbit
