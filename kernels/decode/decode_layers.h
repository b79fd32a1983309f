#pragma once
// All layers of a decode step of one sequence as one op, which on a GPU is one launch (README.md of this folder).
#include <string>
#include <variant>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/rope_append.h"
#include "kernels/decode/decode_peer.h"
#include "kernels/model/gated_act.h"
#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/marlin/marlin_gemm.h"

namespace fewbit {

// A linear that rounds its input to 8 bits (kernels/products/bytes/fp8_gemm.h, kernels/products/bytes/int8_gemm.h).
struct ByteView {
  ByteWeightView w{};
  RowQuant input{};
};
using DecodeLinear = std::variant<MarlinView, ByteView>;
inline int64_t out_of(const DecodeLinear& l) {
  const auto* m = std::get_if<MarlinView>(&l);
  return m ? m->out : std::get<ByteView>(l).w.codes.rows();
}
inline int64_t in_of(const DecodeLinear& l) {
  const auto* m = std::get_if<MarlinView>(&l);
  return m ? m->in : std::get<ByteView>(l).w.codes.cols();
}

// Experts in place of gate, up and down: of those that route() chooses by `router`, the weighted sum
// (kernels/model/route.h: softmax scores, no groups).
struct DecodeMixture {
  ConstTensorView router{};                        // [experts, hidden] bf16
  std::vector<DecodeLinear> gate{}, up{}, down{};  // by expert, alike in kind and size
};
// A decoder layer of the common form:
//   n = rms_norm(x);  x += o(attention(rope(q(n)), rope(k(n)), v(n)))
//   n = rms_norm(x);  x += down(act(gate(n)) * up(n)), or the mixture's sum
// On a GPU the linears of all layers are of one kind:
//   packed  4 bits in groups of 128, all with zero points or all without
//   E4M3    a scale for each output; the input rounded with one scale, its own or a fixed one, which q, k, v share and
//           gate, up share; `in` a multiple of 128, up to 8,192 hidden values
// Mixtures there are packed without zero points, have heads of 128 values and up to 4,096 hidden ones; all layers have
// one or none has.
struct DecodeLayer {
  ConstTensorView input_norm{}, middle_norm{};  // [hidden] bf16
  DecodeLinear q{}, k{}, v{}, o{}, gate{}, up{}, down{};
  DecodeMixture mixture{};                       // no experts: gate, up and down are the layer's
  ConstTensorView q_bias{}, k_bias{}, v_bias{};  // [out] bf16 or null
  ConstTensorView q_norm{}, k_norm{};            // [head_dim] bf16 or null: a norm of every head, before RoPE
  KvCache cache{};                               // of one sequence
};
// What all layers of a stack have in common. A window of 0 means none; a GPU takes no soft cap, and SiLU only.
struct DecodeForm {
  AttentionArgs attention{};
  RopeTable rope{};
  float eps = 0, head_eps = 0;  // of the layers' norms, of the heads'
  float weight_offset = 0;      // as in rms_norm()
  ActKind act = ActKind::silu;
  int top_k = 0;            // experts of a mixture that the token goes to
  bool renormalise = true;  // as in RouteRule
  float scaling = 1;        // the same
  // On a GPU: a launch for what lies between two runs of attention, and attention_cached() between them, which reads a
  // long cache faster than the one launch does.
  bool attention_apart = false;
  // On a GPU: the one that has the other half of the heads and inner values, if any. Layers are then those of this
  // half, without experts, and both GPUs make the same calls of decode_layers() with the same x.
  DecodePeer peer{};
};

// Layers prepared for decode_layers(); what their views show must outlive it.
struct DecodeStack {
  std::vector<DecodeLayer> layers;
  DecodeForm form;
  Tensor table{};      // the layers as the device reads them
  Tensor experts{};    // of mixtures, those of all layers
  Tensor workspace{};  // vectors of a step, between its phases
  int blocks = 0;      // thread blocks of a launch
};
// Why the device has no kernel for such layers; "" = it has. The CPU takes any, op by op.
namespace cpu {
std::string refuses_stack(const Exec&, const std::vector<DecodeLayer>&, const DecodeForm&);
}
namespace cuda {
std::string refuses_stack(const Exec&, const std::vector<DecodeLayer>&, const DecodeForm&);
}
inline std::string refuses_stack(const Exec& ex, const std::vector<DecodeLayer>& layers, const DecodeForm& form) {
  return pick(ex, &cpu::refuses_stack, FEWBIT_CUDA_OP(refuses_stack))(ex, layers, form);
}
namespace cpu {
void prepare_stack(Exec&, DecodeStack&);
}
namespace cuda {
void prepare_stack(Exec&, DecodeStack&);
}
// Prepares layers that refuses_stack() does not refuse.
inline DecodeStack make_stack(Exec& ex, std::vector<DecodeLayer> layers, const DecodeForm& form) {
  DecodeStack stack{.layers = std::move(layers), .form = form};
  pick(ex, &cpu::prepare_stack, FEWBIT_CUDA_OP(prepare_stack))(ex, stack);
  return stack;
}

// All layers on one new token of one sequence: x goes through every layer, its keys and values go to the caches. On a
// GPU this is one launch, or with attention apart one for each layer besides attention_cached(). Values are rounded to
// bf16, and the inputs of E4M3 linears to E4M3, where the ops that this replaces round them (rms_norm, marlin_gemms,
// byte_gemms, rope_append, attention_cached, gated_act), but for what the experts answer, which is weighted in f32;
// sums may be in another order. The same input gives the same bits.
//   x [1, hidden] bf16, in place · position [1] i32 on the device, not read on the host
namespace cpu {
void decode_layers(Exec&, const DecodeStack&, ConstTensorView position, TensorView x);
}
namespace cuda {
void decode_layers(Exec&, const DecodeStack&, ConstTensorView position, TensorView x);
}
inline void decode_layers(Exec& ex, const DecodeStack& stack, ConstTensorView position, TensorView x) {
  pick(ex, &cpu::decode_layers, FEWBIT_CUDA_OP(decode_layers))(ex, stack, position, x);
}
}  // namespace fewbit
