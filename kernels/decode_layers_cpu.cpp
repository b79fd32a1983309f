// The ops that a layer is made of, one after another.
#include "kernels/decode_layers.h"
#include "kernels/norm.h"

namespace fewbit::cpu {

std::string refuses_stack(const Exec&, const std::vector<DecodeLayer>&, const DecodeForm&) { return ""; }
void prepare_stack(Exec&, DecodeStack&) {}

void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  const DecodeForm& form = stack.form;
  const AttentionArgs& a = form.attention;
  const Tensor normed = ex.alloc(x.dtype, x.shape);
  for (const DecodeLayer& l : stack.layers) {
    const auto room = [&](int64_t features) { return ex.alloc(x.dtype, {1, features}); };
    const Tensor q = room(l.q.out), k = room(l.k.out), v = room(l.v.out), attended = room(l.q.out);
    const Tensor gate = room(l.gate.out), up = room(l.up.out);
    const auto norm_heads = [&](const Tensor& heads, ConstTensorView weight) {
      const TensorView rows = heads.view().reshaped({heads.numel() / a.head_dim, a.head_dim});
      if (weight.data) cpu::rms_norm(ex, rows, weight, form.head_eps, form.weight_offset, rows);
    };
    cpu::rms_norm(ex, x, l.input_norm, form.eps, form.weight_offset, normed);
    cpu::marlin_gemm(ex, normed, l.q, l.q_bias, q);
    cpu::marlin_gemm(ex, normed, l.k, l.k_bias, k);
    cpu::marlin_gemm(ex, normed, l.v, l.v_bias, v);
    norm_heads(q, l.q_norm);
    norm_heads(k, l.k_norm);
    cpu::rope_append(ex, q, k, v, position, form.rope, l.cache);
    cpu::attention_cached(ex, q, position, l.cache, a, attended);
    const MarlinProduct o{.w = l.o, .y = x, .add = true}, down{.w = l.down, .y = x, .add = true};
    cpu::marlin_gemms(ex, attended, std::span(&o, 1));
    cpu::rms_norm(ex, x, l.middle_norm, form.eps, form.weight_offset, normed);
    cpu::marlin_gemm(ex, normed, l.gate, {}, gate);
    cpu::marlin_gemm(ex, normed, l.up, {}, up);
    cpu::gated_act(ex, gate, up, form.act, gate);
    cpu::marlin_gemms(ex, gate, std::span(&down, 1));
  }
}

}  // namespace fewbit::cpu
