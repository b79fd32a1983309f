// Gradient of the gated activation: the CPU half. Both activations are g s with s = sigmoid(u):
//   u = scale (g + cubic g^3)
//   act' = s + g s (1 - s) u',   u' = scale (1 + 3 cubic g^2).
#include "kernels/model/gated_act_grad.h"

#include <cmath>

#include "src/core/parallel.h"

namespace fewbit::cpu {

void gated_act_grad(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, ConstTensorView dy, TensorView d_gate,
                    TensorView d_up) {
  const int64_t n = dy.numel();
  FEWBIT_ASSERT(gate.numel() == n && up.numel() == n && d_gate.numel() == n && d_up.numel() == n);
  const SigmoidForm form = sigmoid_form(act);
  parallel_for(n, 8192, [&](int64_t begin, int64_t end) {
    const float scale = form.scale, cubic = form.cubic;
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
