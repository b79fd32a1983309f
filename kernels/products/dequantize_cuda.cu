// Codes to values: a block per row, a thread per column, threads striding over the row.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/dequantize.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>                                                       // of the values
__global__ void dequantize_kernel(const uint8_t* __restrict__ codes,     // [out, in]
                                  const float* __restrict__ scales,      // [out / out_group, groups]
                                  const uint8_t* __restrict__ zeros,     // [out, groups] or null
                                  const int32_t* __restrict__ group_of,  // [in] or null
                                  const float* __restrict__ levels,      // [256] or null
                                  T* __restrict__ w,                     // [out, in]
                                  int in, int groups, int group, int out_group, int mid) {
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < in; i += kThreads) {
    const int g = group_of ? group_of[i] : i / group;
    const int code = codes[row * in + i];
    const float level = levels ? levels[code] : static_cast<float>(code - (zeros ? zeros[row * groups + g] : mid));
    w[row * in + i] = from_f32<T>(level * scales[row / out_group * groups + g]);
  }
}

}  // namespace

void dequantize(Exec& ex, const CodedView& q, TensorView w) {
  const int64_t out = q.codes.rows(), in = q.codes.cols();
  FEWBIT_ASSERT(w.rows() == out && w.cols() == in && q.scales.rows() == (out + q.out_group - 1) / q.out_group &&
                q.group > 0);
  if (out == 0) return;
  dispatch_f32_bf16(w.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    dequantize_kernel<<<static_cast<unsigned>(out), kThreads, 0, ex.cuda_state().stream>>>(
        q.codes.as<uint8_t>(), q.scales.as<float>(), q.zeros.data ? q.zeros.as<uint8_t>() : nullptr,
        q.group_of.data ? q.group_of.as<int32_t>() : nullptr, q.levels.data ? q.levels.as<float>() : nullptr, w.as<T>(),
        static_cast<int>(in), static_cast<int>(q.scales.cols()), static_cast<int>(q.group),
        static_cast<int>(q.out_group), 1 << (q.bits - 1));
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
