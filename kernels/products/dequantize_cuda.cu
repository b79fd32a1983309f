// Codes to values: a block per row, a thread per column, threads striding over the row.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/dequantize.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>  // of the values
__global__ void dequantize_kernel(const CodedArrays<false> q, T* __restrict__ w /* [out, in] */) {
  const int64_t row = blockIdx.x, scale_row = q.scale_row(row);
  for (int i = threadIdx.x; i < q.in; i += kThreads) {
    const int g = q.group_at(i);
    w[q.index(row, i)] = from_f32<T>(q.level(row, i, g) * q.scale(scale_row, g));
  }
}

}  // namespace

void dequantize(Exec& ex, const CodedView& view, TensorView w) {
  const CodedArrays<false> q(view);
  if (q.out == 0) return;
  dispatch_f32_bf16(w.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    dequantize_kernel<<<static_cast<unsigned>(q.out), kThreads, 0, ex.cuda_state().stream>>>(q, w.as<T>());
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
