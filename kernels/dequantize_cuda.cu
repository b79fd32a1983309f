// Codes to values: a block per row, a thread per column, threads striding over the row.
#include "kernels/dequantize.h"
#include "kernels/exec_cuda.h"
#include "kernels/f8_grid.h"
#include "kernels/vec.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, bool kF8>                                             // T: of the values
__global__ void dequantize_kernel(const uint8_t* __restrict__ codes,     // [out, in]
                                  const float* __restrict__ scales,      // [rows of scales, groups]
                                  const uint8_t* __restrict__ zeros,     // [out, groups] or null
                                  const int32_t* __restrict__ group_of,  // [in] or null
                                  T* __restrict__ w,                     // [out, in]
                                  int in, int groups, int group, int mid, int64_t out_group) {
  const int64_t row = blockIdx.x;
  const float* row_scales = scales + row / out_group * groups;
  for (int i = threadIdx.x; i < in; i += kThreads) {
    const int g = group_of ? group_of[i] : i / group;
    const uint8_t code = codes[row * in + i];
    const float level = kF8 ? f8_value(code) : static_cast<float>(code - (zeros ? zeros[row * groups + g] : mid));
    w[row * in + i] = from_f32<T>(level * row_scales[g]);
  }
}

}  // namespace

void dequantize(Exec& ex, const CodedView& q, TensorView w) {
  const int64_t out = q.codes.rows(), in = q.codes.cols();
  FEWBIT_ASSERT(w.rows() == out && w.cols() == in && q.group > 0 && q.out_group > 0);
  FEWBIT_ASSERT(q.scales.rows() == (out + q.out_group - 1) / q.out_group);
  FEWBIT_ASSERT(q.grid == Grid::integer || q.grid == Grid::f8_e4m3);
  if (out == 0) return;
  dispatch_f32_bf16(w.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto kernel = q.grid == Grid::f8_e4m3 ? dequantize_kernel<T, true> : dequantize_kernel<T, false>;
    kernel<<<static_cast<unsigned>(out), kThreads, 0, ex.cuda_state().stream>>>(
        q.codes.as<uint8_t>(), q.scales.as<float>(), q.zeros.data ? q.zeros.as<uint8_t>() : nullptr,
        q.group_of.data ? q.group_of.as<int32_t>() : nullptr, w.as<T>(), static_cast<int>(in),
        static_cast<int>(q.scales.cols()), static_cast<int>(q.group), 1 << (q.bits - 1), q.out_group);
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
