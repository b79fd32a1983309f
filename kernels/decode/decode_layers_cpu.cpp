// The ops that a layer is made of, one after another.
#include "kernels/decode/decode_layers.h"
#include "kernels/model/norm.h"
#include "kernels/products/bytes/byte_gemms.h"

namespace fewbit::cpu {

std::string refuses_stack(const Exec&, const std::vector<DecodeLayer>&, const DecodeForm&) { return ""; }
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
}  // namespace

void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  const DecodeForm& form = stack.form;
  const AttentionArgs& a = form.attention;
  const Tensor normed = ex.alloc(x.dtype, x.shape);
  for (const DecodeLayer& l : stack.layers) {
    const auto room = [&](int64_t features) { return ex.alloc(x.dtype, {x.rows(), features}); };
    const Tensor q = room(out_of(l.q)), k = room(out_of(l.k)), v = room(out_of(l.v)), attended = room(out_of(l.q));
    const Tensor gate = room(out_of(l.gate)), up = room(out_of(l.up));
    cpu::rms_norm(ex, x, l.input_norm, form.eps, form.weight_offset, normed);
    product(ex, normed, l.q, l.q_bias, q);
    product(ex, normed, l.k, l.k_bias, k);
    product(ex, normed, l.v, l.v_bias, v);
    const HeadNorms norms{.q = l.q_norm, .k = l.k_norm, .eps = form.head_eps, .offset = form.weight_offset};
    cpu::rope_append(ex, q, k, v, position, norms, form.rope, l.cache);
    cpu::attention_cached(ex, q, position, l.cache, a, attended);
    product(ex, attended, l.o, {}, x, true);
    cpu::rms_norm(ex, x, l.middle_norm, form.eps, form.weight_offset, normed);
    product(ex, normed, l.gate, {}, gate);
    product(ex, normed, l.up, {}, up);
    cpu::gated_act(ex, gate, up, form.act, gate);
    product(ex, gate, l.down, {}, x, true);
  }
}

}  // namespace fewbit::cpu
