// Both activations are g * sigmoid(u(g)) with u = scale (g + cubic g^3), so that
//   act' = s + g s (1 - s) u',   u' = scale (1 + 3 cubic g^2).
#include "kernels/model/gated_act_grad.h"

#include <cmath>

#include "src/core/parallel.h"

namespace fewbit::cpu {

void gated_act_grad(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, ConstTensorView dy, TensorView d_gate,
                    TensorView d_up) {
  const int64_t n = dy.numel();
  FEWBIT_ASSERT(gate.numel() == n && up.numel() == n && d_gate.numel() == n && d_up.numel() == n);
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
  const float scale = act == ActKind::silu ? 1.f : kTwoSqrtTwoOverPi;
  const float cubic = act == ActKind::silu ? 0.f : 0.044715f;
  parallel_for(n, 8192, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float g = gate.as<float>()[i], grad = dy.as<float>()[i];
      const float s = 1.f / (1.f + std::exp(-scale * (g + cubic * g * g * g)));
      const float slope = s + g * s * (1.f - s) * scale * (1.f + 3.f * cubic * g * g);
      d_gate.as<float>()[i] = grad * up.as<float>()[i] * slope;
      d_up.as<float>()[i] = grad * g * s;
    }
  });
}

}  // namespace fewbit::cpu
