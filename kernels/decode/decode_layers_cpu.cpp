// The ops that a layer is made of, one after another.
#include "kernels/decode/decode_layers.h"
#include "kernels/decode/experts/few_experts.h"
#include "kernels/model/norm.h"
#include "kernels/model/route.h"
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/gemm.h"

namespace fewbit::cpu {

std::string refuses_stack(const Exec&, const std::vector<DecodeLayer>&, const DecodeForm& form) {
  return form.peer.present() ? "layers that two GPUs share" : "";
}
void prepare_stack(Exec&, DecodeStack&) {}

namespace {
void product(Exec& ex, ConstTensorView x, const DecodeLinear& w, ConstTensorView bias, TensorView y, bool add = false) {
  if (const auto* m = std::get_if<MarlinView>(&w)) {
    const MarlinProduct p{.w = *m, .bias = bias, .y = y, .add = add};
    return cpu::marlin_gemms(ex, x, std::span(&p, 1));
  }
  const auto& b = std::get<ByteView>(w);
  const ByteProduct p{.w = b.w, .bias = bias, .y = y, .add = add};
  cpu::byte_gemms(ex, x, b.input, std::span(&p, 1));
}

ExpertLinear expert_of(const DecodeLinear& w) {
  if (const auto* m = std::get_if<MarlinView>(&w)) return {.w = *m};
  return {.w = std::get<ByteView>(w)};
}

// x += the weighted sum of the experts that `normed` is sent to.
void add_mixture(Exec& ex, ConstTensorView normed, const DecodeMixture& m, const DecodeForm& form, TensorView x) {
  const auto experts = static_cast<int64_t>(m.up.size());
  const Tensor logits = ex.alloc(DType::f32, {x.rows(), experts});
  const Tensor ids = ex.alloc(DType::i32, {x.rows(), form.top_k}), shares = ex.alloc(DType::f32, ids.shape());
  cpu::gemm(ex, normed, m.router, {}, logits);
  cpu::route(ex, logits, {.renormalise = form.renormalise, .scaling = form.scaling}, ids, shares);
  ExpertMixture all{.act = form.act};
  for (int64_t e = 0; e < experts; ++e) {
    const auto i = static_cast<size_t>(e);
    all.gate.push_back(expert_of(m.gate[i])), all.up.push_back(expert_of(m.up[i]));
    all.down.push_back(expert_of(m.down[i]));
  }
  cpu::few_experts(ex, normed, ids, shares, all, x, true);
}
}  // namespace

void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  const DecodeForm& form = stack.form;
  const AttentionArgs& a = form.attention;
  const Tensor normed = ex.alloc(x.dtype, x.shape);
  for (const DecodeLayer& l : stack.layers) {
    const auto room = [&](int64_t features) { return ex.alloc(x.dtype, {x.rows(), features}); };
    const Tensor q = room(out_of(l.q)), k = room(out_of(l.k)), v = room(out_of(l.v)), attended = room(out_of(l.q));
    cpu::rms_norm(ex, x, l.input_norm, form.eps, form.weight_offset, normed);
    product(ex, normed, l.q, l.q_bias, q);
    product(ex, normed, l.k, l.k_bias, k);
    product(ex, normed, l.v, l.v_bias, v);
    const HeadNorms norms{.q = l.q_norm, .k = l.k_norm, .eps = form.head_eps, .offset = form.weight_offset};
    cpu::rope_append(ex, q, k, v, position, norms, form.rope, l.cache);
    cpu::attention_cached(ex, q, position, l.cache, a, attended);
    product(ex, attended, l.o, {}, x, true);
    cpu::rms_norm(ex, x, l.middle_norm, form.eps, form.weight_offset, normed);
    if (!l.mixture.up.empty()) {
      add_mixture(ex, normed, l.mixture, form, x);
      continue;
    }
    const Tensor gate = room(out_of(l.gate)), up = room(out_of(l.up));
    product(ex, normed, l.gate, {}, gate);
    product(ex, normed, l.up, {}, up);
    cpu::gated_act(ex, gate, up, form.act, gate);
    product(ex, gate, l.down, {}, x, true);
  }
}

}  // namespace fewbit::cpu
