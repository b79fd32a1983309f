#pragma once
// activate(): the activations of kernels/model/gated_act.h on the GPU.
#include "kernels/model/gated_act.h"

namespace fewbit::cuda {

template <ActKind kAct>
__device__ __forceinline__ float activate(float g) {
  if constexpr (kAct == ActKind::silu) return g / (1.f + expf(-g));
  if constexpr (kAct == ActKind::relu) return fmaxf(g, 0.f);
  if constexpr (kAct == ActKind::none) return g;
  const float inner = 0.7978845608028654f * fmaf(0.044715f * g, g * g, g);  // sqrt(2/pi) (g + 0.044715 g^3)
  return 0.5f * g * (1.f + tanhf(inner));
}

}  // namespace fewbit::cuda
