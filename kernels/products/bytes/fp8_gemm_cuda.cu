// FP8 products of quantized rows, where skinny.cuh does not take them. Few rows: the kernel of byte_rows.cuh, whose
// codes become floats in registers. More: the FP8 tensor cores through cuBLASLt or, without them, a dense product of
// bf16 copies of the codes, which hold them exactly. The f32 sums are scaled on the way to y; from 256 rows on, on
// compute capability 9.0, by the library itself.
#include <optional>
#include <vector>

#include "kernels/grids/f8_grid.h"
#include "kernels/products/bytes/byte_rows.cuh"
#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/bytes/library_product.cuh"
#include "kernels/products/dense.cuh"

namespace fewbit::cuda::byte_product {
namespace {

struct F8Dot {
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
void widened_product(CudaState& s, const Task& t, float* sums, uint8_t* room) {
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

void fp8_products(CudaState& s, const prepare_rows::Source& source, const RowQuant& q, std::span<const Task> tasks) {
  std::vector<std::optional<LibraryProduct>> library;  // of each task; nothing where the library has no product of E4M3
  const auto room_of = [&](int64_t rows) {
    int64_t most = 0;  // bytes of room, over the tasks
    library.clear();
    for (Task t : tasks) {
      t.rows = rows;
      std::optional<LibraryProduct>& made = library.emplace_back();
      const Kernel kernel = choose_kernel(problem_of(t, source.x.dtype, DType::f8_e4m3, true), s.traits()).kernel;
      if (kernel == Kernel::library_codes) {
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
  for_row_chunks(s, source, q, tasks, room_of, [&](const Task& t, size_t i, uint8_t* room) {
    const std::optional<LibraryProduct>& product = library[i];
    if (!product && t.rows <= kFewByteRows) return launch_few_rows<F8Dot>(s.stream, t);
    if (product && product->scales()) return product->run(s, t, t.y);
    auto* sums = reinterpret_cast<float*>(room);
    if (product)
      product->run(s, t, sums);
    else
      widened_product(s, t, sums, room + aligned_bytes(4 * t.rows * t.out));
    scale_sums(s.stream, sums, t);
  });
}

}  // namespace fewbit::cuda::byte_product

namespace fewbit {

bool has_fp8_products(const Exec& ex) { return ex.on_cuda() && ex.cuda_state().traits().fp8_tensor_cores(); }

}  // namespace fewbit
