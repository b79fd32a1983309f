// The experts that a token goes to by its id: a block has a token, a thread some of its experts. Bytes: the weights
// once.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/token_route.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ float score_of(float z) { return sqrtf(fmaxf(z, 0.f) + log1pf(expf(-fabsf(z)))); }

template <class T>
__global__ void __launch_bounds__(kThreads)
    token_route_kernel(const float* logits, const int32_t* table, const int32_t* ids, TokenRouteRule rule, int experts,
                       int top_k, T* weights) {
  const int64_t t = blockIdx.x;
  const int32_t* own = table + static_cast<int64_t>(ids[t]) * top_k;
  logits += t * experts;
  float sum = 1e-20f;
  for (int i = 0; i < top_k; ++i) sum += score_of(logits[own[i]]);
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    int times = 0;
    for (int i = 0; i < top_k; ++i) times += own[i] == e;
    const float weight = score_of(logits[e]) / (rule.renormalise ? sum : 1.f) * rule.scaling;
    weights[t * experts + e] = from_f32<T>(times > 0 ? static_cast<float>(times) * weight : 0.f);
  }
}

}  // namespace

void token_route(Exec& ex, ConstTensorView logits, ConstTensorView table, ConstTensorView ids,
                 const TokenRouteRule& rule, TensorView weights) {
  if (logits.rows() == 0) return;
  dispatch_f32_bf16(weights.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    token_route_kernel<T><<<static_cast<unsigned>(logits.rows()), kThreads, 0, ex.cuda_state().stream>>>(
        logits.as<float>(), table.as<int32_t>(), ids.as<int32_t>(), rule, static_cast<int>(logits.cols()),
        static_cast<int>(table.cols()), weights.as<T>());
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
