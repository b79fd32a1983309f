#pragma once
// A mixture of experts on a few tokens whose routing stays on the device: what a recorded decode step needs.
#include <string>
#include <variant>
#include <vector>

#include "kernels/decode/decode_layers.h"
#include "kernels/products/fp4_values.h"

namespace fewbit {

inline constexpr int64_t kFewTokens = 16;  // of a call, at most

// A linear of an expert: dense [out, in] bf16, packed, 8-bit codes, or MXFP4 in tiles (kernels/grids/fp4_tiles.h).
struct ExpertLinear {
  std::variant<ConstTensorView, MarlinView, ByteView, Fp4View> w{};
  ConstTensorView bias{};  // [out] bf16 or null
};
// The experts of a mixture; what its views show must outlive it. A GPU wants
//   - all gates and ups alike, and all downs alike: in sizes, kind, bits, groups, presence of zero points and biases,
//     and the scale of their inputs, if that is a fixed one
//   - of dense ones `in` a multiple of 32 values, of 8-bit ones of 64; all data at multiples of 16 bytes
struct ExpertMixture {
  std::vector<ExpertLinear> gate{}, up{}, down{};  // by expert; without gates: act(up) * up
  ActKind act = ActKind::silu;
  SwigluClamp swiglu{0};      // limit > 0: clamped_swiglu() (kernels/model/gated_act.h) in place of act(gate) * up
  bool weigh_inputs = false;  // shares multiply what experts read, not what they answer
  Tensor table{};             // the experts as the device reads them, made by prepare_experts()
};

// Why the device has no kernel for such experts, `top_k` a token; "" = it has. The CPU takes any.
namespace cpu {
std::string refuses_experts(const Exec&, const ExpertMixture&, int64_t top_k);
}
namespace cuda {
std::string refuses_experts(const Exec&, const ExpertMixture&, int64_t top_k);
}
inline std::string refuses_experts(const Exec& ex, const ExpertMixture& m, int64_t top_k) {
  return pick(ex, &cpu::refuses_experts, FEWBIT_CUDA_OP(refuses_experts))(ex, m, top_k);
}
// Prepares experts that refuses_experts() does not refuse.
namespace cpu {
void prepare_experts(Exec&, ExpertMixture&);
}
namespace cuda {
void prepare_experts(Exec&, ExpertMixture&);
}
inline void prepare_experts(Exec& ex, ExpertMixture& m) {
  pick(ex, &cpu::prepare_experts, FEWBIT_CUDA_OP(prepare_experts))(ex, m);
}

// out[t] = sum over i of shares[t, i] * expert ids[t, i] of x[t], an expert being down(act(gate(x)) * up(x)). With
// `add` that sum, rounded to bf16, is added to out[t], as add() does it (kernels/model/add.h).
//   x       [tokens, hidden]  bf16, up to kFewTokens tokens
//   ids     [tokens, top_k]   i32 in [0, experts), none twice in a row
//   shares  [tokens, top_k]   f32
//   out     [tokens, hidden]  bf16; may be x, but not where it is added to
// Numerics: those of the ops one after another. Sums in f32 (of int8: in int32), scales and biases after them; what a
// linear and the activation make is rounded to bf16, weighted inputs too; the answers are added in f32 in the order of
// the experts' numbers. On a GPU the order of a product's sums depends on its shape alone, so the bits of a token do
// not depend on the others.
// Errors: shapes or dtypes other than these stop the process (FEWBIT_ASSERT).
namespace cpu {
void few_experts(Exec&, ConstTensorView x, ConstTensorView ids, ConstTensorView shares, const ExpertMixture&,
                 TensorView out, bool add);
}
namespace cuda {
void few_experts(Exec&, ConstTensorView x, ConstTensorView ids, ConstTensorView shares, const ExpertMixture&,
                 TensorView out, bool add);
}
inline void few_experts(Exec& ex, ConstTensorView x, ConstTensorView ids, ConstTensorView shares,
                        const ExpertMixture& m, TensorView out, bool add = false) {
  FEWBIT_ASSERT(x.rows() <= kFewTokens && ids.rows() == x.rows() && ids.shape == shares.shape);
  FEWBIT_ASSERT(x.dtype == DType::bf16 && out.dtype == DType::bf16 && out.shape == x.shape);
  FEWBIT_ASSERT(ids.dtype == DType::i32 && shares.dtype == DType::f32);
  FEWBIT_ASSERT(m.up.size() == m.down.size() && (m.gate.empty() || m.gate.size() == m.up.size()));
  pick(ex, &cpu::few_experts, FEWBIT_CUDA_OP(few_experts))(ex, x, ids, shares, m, out, add);
}

}  // namespace fewbit
