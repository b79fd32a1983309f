#pragma once
// gated_act: the gated activation between the products of an MLP.
#include "kernels/exec/exec.h"
namespace fewbit {
enum class ActKind : uint8_t {
  silu,       // g * sigmoid(g)
  gelu_tanh,  // g / 2 * (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) (Hendrycks and Gimpel, 2016)
  relu,       // max(g, 0)
  none,       // g
};
// The first two are g * sigmoid(scale (g + cubic g^3)), as tanh(u) = 2 sigmoid(2 u) - 1.
struct SigmoidForm {
  float scale, cubic;
};
constexpr SigmoidForm sigmoid_form(ActKind act) {
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;  // 2 sqrt(2/pi)
  return act == ActKind::silu ? SigmoidForm{1.f, 0.f} : SigmoidForm{kTwoSqrtTwoOverPi, 0.044715f};
}

// out = act(gate) * up, computed in f32, rounded once (Shazeer, GLU Variants Improve Transformer, 2020: SwiGLU, GEGLU).
//   gate, up, out  the same shape and dtype, f32 | bf16; out may be gate or up, and gate up
namespace cpu {
void gated_act(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out);
}
namespace cuda {
void gated_act(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out);
}
inline void gated_act(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out) {
  pick(ex, &cpu::gated_act, FEWBIT_CUDA_OP(gated_act))(ex, gate, up, act, out);
}
// clamped_swiglu: out = (u + shift) g sigmoid(slope g) with g = min(gate, limit), u = clamp(up, -limit, limit); the
// slope and shift of gpt-oss (2025), or 1 and 0 (DeepSeek-V4); shapes and types as above.
struct SwigluClamp {
  float limit, slope = 1.702f, shift = 1.f;
};
namespace cpu {
void clamped_swiglu(Exec&, ConstTensorView gate, ConstTensorView up, const SwigluClamp&, TensorView out);
}
namespace cuda {
void clamped_swiglu(Exec&, ConstTensorView gate, ConstTensorView up, const SwigluClamp&, TensorView out);
}
inline void clamped_swiglu(Exec& ex, ConstTensorView gate, ConstTensorView up, const SwigluClamp& clamp,
                           TensorView out) {
  FEWBIT_ASSERT(gate.numel() == out.numel() && up.numel() == out.numel() && clamp.limit > 0);
  FEWBIT_ASSERT(gate.dtype == out.dtype && up.dtype == out.dtype);
  pick(ex, &cpu::clamped_swiglu, FEWBIT_CUDA_OP(clamped_swiglu))(ex, gate, up, clamp, out);
}
}  // namespace fewbit
