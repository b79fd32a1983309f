// Products of E4M3 weights with x as it is (weight-only FP8), where skinny.cuh does not take them, in one of two ways:
//
// - Two terms. Under a power of two for each row, a bf16 value (8 bits of significand) is the sum of two E4M3 values (4
//   bits each), exact down to 2^-21 of the row's largest value. With FP8 tensor cores the high and the low terms of x
//   go as two rows of codes through the library's product, and the weights are read once, as they lie.
// - Dequantized. The weights are written to scratch memory as code * scale in the type of x, a slab of outputs at a
//   time, for a dense product.
#include <algorithm>
#include <vector>

#include "kernels/device/powers.cuh"
#include "kernels/grids/f8_grid.h"
#include "kernels/products/bytes/byte_codes.cuh"
#include "kernels/products/bytes/byte_rows.cuh"
#include "kernels/products/bytes/library_product.cuh"
#include "kernels/products/dense.cuh"

namespace fewbit::cuda::fp8_unrounded {
namespace {

using byte_product::kLowTermFactor;
using byte_product::LibraryProduct;
using byte_product::Task;

constexpr int kThreads = 256;
constexpr int64_t kScratch = int64_t{256} << 20;  // bytes of dequantized weight, or of terms and sums, at a time

// A block has an output; a thread takes kN codes at a step.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const uint8_t* __restrict__ codes,  // [out, in]
                                                              const float* __restrict__ scales,   // [out]
                                                              T* __restrict__ w,                  // [out, in]
                                                              int64_t in) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * in;
  const float scale = scales[blockIdx.x];
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * kN; i < in; i += kThreads * kN) {
    const auto code = load_vec<uint8_t, kN>(codes + row + i);
    Vec<T, kN> values;
#pragma unroll
    for (int k = 0; k < kN; ++k) values[k] = from_f32<T>(mul_rn(f8_value(code[k]), scale));
    store_vec(w + row + i, values);
  }
}

void dequantized_product(CudaState& s, ConstTensorView x, const ByteProduct& p) {
  const int64_t in = x.cols(), out = p.w.codes.rows(), width = bytes_of(x.dtype);
  // Whole 64s of outputs: where y of a slab begins stays aligned for the library.
  const int64_t slab = std::min(out, std::max<int64_t>(64, kScratch / (width * in) / 64 * 64));
  void* weight = s.scratch(static_cast<size_t>(slab * in * width));
  if (p.bias.data) lay_bias(s, p.bias, p.y);
  for (int64_t n0 = 0; n0 < out; n0 += slab) {
    const int64_t n = std::min(slab, out - n0);
    const auto* codes = static_cast<const uint8_t*>(p.w.codes.data) + n0 * in;
    dispatch_f32_bf16(x.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      const bool vectors = in % 8 == 0 && reinterpret_cast<uintptr_t>(codes) % 8 == 0;
      auto* kernel = vectors ? dequantize_kernel<T, 8> : dequantize_kernel<T, 1>;
      kernel<<<static_cast<unsigned>(n), kThreads, 0, s.stream>>>(codes, p.w.scales.as<float>() + n0,
                                                                  static_cast<T*>(weight), in);
    });
    FEWBIT_CUDA_LAUNCHED();
    dense_product(s, {.x = x.data,
                      .w = weight,
                      .y = static_cast<char*>(p.y.data) + n0 * bytes_of(p.y.dtype),
                      .in_dtype = x.dtype,
                      .y_dtype = p.y.dtype,
                      .rows = x.rows(),
                      .in = in,
                      .out = n,
                      .y_stride = out,
                      .add = p.add || p.bias.data != nullptr});
  }
}

constexpr int kSplitThreads = 512;

// The power of two under which the largest magnitude of a row lies in [2^7, 2^8), below E4M3's 448; a NaN or an
// infinity stays what it is, as in f16_row_scale() (kernels/grids/row_grid.h).
__device__ float term_scale(float most) {
  if (!(most <= 3.402823466e38f)) return most;
  if (most == 0) return 1;
  return power_of_two(max(-126, static_cast<int>(__float_as_uint(most) >> 23) - 127 - 7));
}

// x = scales * (high + low / kLowTermFactor). A block has a row. What lies below 2^-21 of its largest value is rounded
// away: the steps of the low term end there.
__global__ void __launch_bounds__(kSplitThreads) split_kernel(const __nv_bfloat16* __restrict__ x,  // [rows, in]
                                                              uint8_t* __restrict__ high,           // [rows, in]
                                                              uint8_t* __restrict__ low,            // [rows, in]
                                                              float* __restrict__ scales,           // [rows]
                                                              int in) {
  __shared__ float partial[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * in;
  float most = 0;
  for (int i = 8 * threadIdx.x; i < in; i += 8 * kSplitThreads) {
    const auto v = load_vec<__nv_bfloat16, 8>(x + row + i);
#pragma unroll
    for (int k = 0; k < 8; ++k) most = larger_abs(most, to_f32(v[k]));
  }
  most = block_reduce(
      most, [](float a, float b) { return larger_abs(a, b); }, 0.f, partial);
  const float scale = term_scale(most), inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (int i = 8 * threadIdx.x; i < in; i += 8 * kSplitThreads) {
    const auto v = load_vec<__nv_bfloat16, 8>(x + row + i);
    uint32_t high_codes[2], low_codes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float rest[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) rest[k] = mul_rn(to_f32(v[4 * half + k]), inverse);
      high_codes[half] = codes_of<true>({rest[0], rest[1], rest[2], rest[3]});
#pragma unroll
      for (int k = 0; k < 4; ++k)
        rest[k] = kLowTermFactor * (rest[k] - f8_value(static_cast<uint8_t>(high_codes[half] >> (8 * k))));
      low_codes[half] = codes_of<true>({rest[0], rest[1], rest[2], rest[3]});
    }
    *reinterpret_cast<uint2*>(high + row + i) = {high_codes[0], high_codes[1]};
    *reinterpret_cast<uint2*>(low + row + i) = {low_codes[0], low_codes[1]};
  }
}

bool takes_two_terms(const CudaState& s, ConstTensorView x, std::span<const Task> tasks) {
  return aligned16(static_cast<const uint8_t*>(x.data)) && std::all_of(tasks.begin(), tasks.end(), [&](const Task& t) {
           KernelProblem p = byte_product::problem_of(t, x.dtype, DType::f16, true);
           return choose_kernel(p, s.traits()).kernel == Kernel::two_term_codes;
         });
}

// False, and nothing done, where the library has no such product.
bool two_term_products(CudaState& s, ConstTensorView x, std::span<const Task> tasks) {
  if (!takes_two_terms(s, x, tasks)) return false;
  const int64_t in = x.cols(), rows = x.rows();
  int64_t widest = 0;
  for (const Task& t : tasks) widest = std::max(widest, t.out);
  const auto products_of = [&](int64_t n) {  // of n rows; empty where one is missing
    std::vector<LibraryProduct> made;
    for (Task t : tasks) {
      t.rows = 2 * n;
      made.push_back(LibraryProduct::raw(s, byte_product::kF8Sums, t));
      if (!made.back()) return std::vector<LibraryProduct>{};
    }
    return made;
  };
  const int64_t chunk = std::clamp<int64_t>(kScratch / (2 * in + 8 * widest), 1, rows);
  const std::vector<LibraryProduct> of_chunk = products_of(chunk);
  const std::vector<LibraryProduct> of_rest =
      rows % chunk != 0 ? products_of(rows % chunk) : std::vector<LibraryProduct>{};
  if (of_chunk.empty() || (rows % chunk != 0 && of_rest.empty())) return false;
  for (int64_t r = 0; r < rows; r += chunk) {
    const int64_t n = std::min(chunk, rows - r);
    const int64_t codes = byte_product::aligned_bytes(2 * n * in), scales = byte_product::aligned_bytes(4 * n);
    auto* base = static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + scales + 8 * n * widest)));
    auto* x_scales = reinterpret_cast<float*>(base + codes);
    auto* sums = reinterpret_cast<float*>(base + codes + scales);
    split_kernel<<<static_cast<unsigned>(n), kSplitThreads, 0, s.stream>>>(
        x.as<__nv_bfloat16>() + r * in, base, base + n * in, x_scales, static_cast<int>(in));
    FEWBIT_CUDA_LAUNCHED();
    const std::vector<LibraryProduct>& library = n == chunk ? of_chunk : of_rest;
    for (size_t i = 0; i < tasks.size(); ++i) {
      Task t = tasks[i];
      t.x = base;
      t.rows = 2 * n;
      library[i].run(s, t, sums);
      t.x_scales = x_scales;
      t.rows = n;
      t.y = static_cast<char*>(t.y) + r * t.out * bytes_of(t.y_dtype);
      byte_product::scale_sums(s.stream, sums, t, sums + n * t.out);
    }
  }
  return true;
}

}  // namespace

void products(CudaState& s, ConstTensorView x, std::span<const ByteProduct> all) {
  std::vector<Task> tasks;
  for (const ByteProduct& p : all)
    if (const Task task = byte_product::make_task(x, p); task.out > 0) tasks.push_back(task);
  if (tasks.empty() || two_term_products(s, x, tasks)) return;
  for (const ByteProduct& p : all)
    if (p.w.codes.rows() > 0) dequantized_product(s, x, p);
}

}  // namespace fewbit::cuda::fp8_unrounded
