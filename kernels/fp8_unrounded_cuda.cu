// E4M3 weights with x as it is, where skinny.cuh does not take them: dequantized into scratch memory, a slab of outputs at
// a time, and multiplied by cuBLAS.
#include <algorithm>

#include "kernels/byte_product.cuh"
#include "kernels/dense.cuh"
#include "kernels/f8_grid.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kDenseScratch = int64_t{256} << 20;  // bytes of dequantized weight at a time

// A block has an output; kN codes a thread and step.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const uint8_t* __restrict__ codes,  // [out, in]
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

}  // namespace

void unrounded_product(CudaState& s, ConstTensorView x, const ByteProduct& p) {
  const int64_t in = x.cols(), out = p.w.codes.rows(), width = bytes_of(x.dtype);
  const int64_t slab = std::clamp<int64_t>(kDenseScratch / (width * in), 1, out);
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

}  // namespace fewbit::cuda
