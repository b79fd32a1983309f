// The part of a linear that one of several ranks has.
#include "src/run/linear.h"

namespace fewbit {

Linear load_share(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LinearShare& share, const LoadOptions& o,
                  std::string* note) {
  if (note) note->clear();
  const std::initializer_list<DType> floats = {DType::f32, DType::f16, DType::bf16};
  Tensor bias;
  if (l.bias && share.bias) bias = cut(c.store.expect(l.name + ".bias", floats, {l.out}), share);
  if (!c.packed(l.name)) {
    const Tensor weight = cut(c.store.expect(l.name + ".weight", floats, {l.out, l.in}), share);
    c.store.release(l.name + ".weight");
    return make_dense(ex, weight, bias, o.dtype);
  }
  if (const int64_t turn = c.quantization.linears.at(l.name).spec.turn; turn > 0 && share.in() % turn != 0)
    fail(ErrorKind::unsupported, l.name + ": a rank's share of " + std::to_string(share.in()) +
                                     " inputs does not hold whole matrices of " + std::to_string(turn) +
                                     ", which turn them; --tp 1");
  const QuantizedLinear q = cut(c.unpack(l.name, l.out, l.in), share);
  Linear linear = make_linear(ex, q, bias, o, note);
  if (note && note->empty() && share.in() < l.in && q.spec.activations == ActQuant::token && input_quant(q.spec, {}))
    *note = "each rank rounds its inputs by the largest of its own part of a token";
  return linear;
}

Linear load_dense(Exec& ex, const Checkpoint& c, const NamedLinear& l, const LinearShare& share, DType dtype) {
  Tensor bias;
  if (l.bias && share.bias)
    bias = cut(c.store.expect(l.name + ".bias", {DType::f32, DType::f16, DType::bf16}, {l.out}), share);
  return make_dense(ex, cut(c.values(l), share), bias, dtype);
}

}  // namespace fewbit
