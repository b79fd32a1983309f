// The gated activation: the CPU half. SiLU and GELU are a gate times a sigmoid (SigmoidForm).
#include "kernels/model/gated_act.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace {

// g = act(g) * u of the activations without a sigmoid.
void plain_gate(float* g, const float* u, ActKind act, int64_t n) {
  for (int64_t i = 0; i < n; ++i) g[i] = (act == ActKind::relu ? std::max(g[i], 0.f) : g[i]) * u[i];
}

}  // namespace

void gated_act(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out) {
  FEWBIT_ASSERT(gate.numel() == up.numel() && gate.numel() == out.numel());
  FEWBIT_ASSERT(gate.dtype == up.dtype && gate.dtype == out.dtype);
  constexpr int64_t kGrain = 8192;
  const bool sigmoid = act == ActKind::silu || act == ActKind::gelu_tanh;
  const SigmoidForm form = sigmoid_form(act);
  for_float_type(gate.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      float g[kGrain], u[kGrain];
      widen(gate.as<T>() + begin, g, end - begin);
      widen(up.as<T>() + begin, u, end - begin);
      if (sigmoid)
        gated_sigmoid(g, u, form.scale, form.cubic, g, end - begin);
      else
        plain_gate(g, u, act, end - begin);
      narrow(g, out.as<T>() + begin, end - begin);
    });
  });
}

void clamped_swiglu(Exec&, ConstTensorView gate, ConstTensorView up, const SwigluClamp& clamp, TensorView out) {
  constexpr int64_t kGrain = 8192;
  for_float_type(gate.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      float g[kGrain], u[kGrain];
      widen(gate.as<T>() + begin, g, end - begin);
      widen(up.as<T>() + begin, u, end - begin);
      for (int64_t i = 0; i < end - begin; ++i) {
        const float low = std::min(g[i], clamp.limit), bounded = std::clamp(u[i], -clamp.limit, clamp.limit);
        g[i] = (bounded + clamp.shift) * low / (1 + std::exp(-clamp.slope * low));
      }
      narrow(g, out.as<T>() + begin, end - begin);
    });
  });
}

}  // namespace fewbit::cpu
