// act(gate) * up. Both activations are a gate times a sigmoid: gelu_tanh(g) = g / 2 * (1 + tanh(u)) = g *
// sigmoid(2 u).
#include "kernels/model/gated_act.h"

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void gated_act(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out) {
  FEWBIT_ASSERT(gate.numel() == up.numel() && gate.numel() == out.numel());
  FEWBIT_ASSERT(gate.dtype == up.dtype && gate.dtype == out.dtype);
  constexpr int64_t kGrain = 8192;
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
  const float scale = act == ActKind::silu ? 1.f : kTwoSqrtTwoOverPi;
  const float cubic = act == ActKind::silu ? 0.f : 0.044715f;
  for_float_type(gate.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      float g[kGrain], u[kGrain];
      widen(gate.as<T>() + begin, g, end - begin);
      widen(up.as<T>() + begin, u, end - begin);
      gated_sigmoid(g, u, scale, cubic, g, end - begin);
      narrow(g, out.as<T>() + begin, end - begin);
    });
  });
}

}  // namespace fewbit::cpu
