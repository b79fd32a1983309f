#include "src/model/gguf_names.h"

#include <fmt/format.h>

#include <cstring>

#include "src/model/checkpoint.h"
#include "src/model/gguf_family.h"

namespace fewbit {
namespace {

// What a family does not call otherwise. Relative to the block: "model.layers.7." here, "blk.7." there.
constexpr GgufName kNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"post_attention_layernorm", "ffn_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};

[[noreturn]] void no_place(const GgufFamily& family, const std::string& model) {
  fail(ErrorKind::unsupported, fmt::format("{} has no place in GGUF of architecture {}", model, family.arch));
}

std::string gguf_name(const GgufFamily& family, const std::string& model) {
  for (const GgufName& n : family.names)
    if (n.model == model) return std::string(n.gguf);
  for (const GgufName& n : kNames)
    if (n.model == model) return std::string(n.gguf);
  no_place(family, model);
}

// Whether neighbouring features of a head turn together in the model's own order of rows.
bool turns_neighbours(const ModelSpec& spec) {
  for (const auto& block : spec.kinds)
    for (const BlockOp& op : block)
      if (const auto* r = std::get_if<Rope>(&op)) return r->neighbours;
  return false;
}

float added_to(NormKind kind) { return kind == NormKind::rms_plus_one ? 1.f : 0.f; }

// Collects the tensors of one block.
class Block {
 public:
  Block(const ModelSpec& spec, int64_t layer, const GgufFamily& family, std::vector<GgufTensor>& out)
      : from_(spec.prefix(layer)), to_("blk." + std::to_string(layer) + "."), family_(family), out_(out) {
    attention_ = attention_of(spec.block(layer));
    paired_ = family_.pairs && !turns_neighbours(spec);
    if (!family_.pairs && turns_neighbours(spec)) no_place(family_, "a rotation of neighbouring features");
    for (const BlockOp& op : spec.block(layer)) std::visit([&](const auto& o) { add(o); }, op);
  }

 private:
  void add(const Norm& n) { norm(n.name, n.features, n.kind); }
  void add(const HeadNorm& n) {
    if (!n.name.empty()) norm(n.name, n.head_dim, n.kind);
  }
  void add(const Linears& group) {
    for (const LinearDef& l : group.items) {
      const int64_t heads = !paired_ || !attention_  ? 0
                            : l.out == attention_->q ? attention_->heads
                            : l.out == attention_->k ? attention_->kv_heads
                                                     : 0;
      const std::string name = to_ + gguf_name(family_, l.name);
      out_.push_back({name + ".weight", {from_ + l.name + ".weight"}, {l.out_features, l.in_features}, true, heads});
      if (l.bias) out_.push_back({name + ".bias", {from_ + l.name + ".bias"}, {l.out_features}, false, heads});
    }
  }
  void add(const Attention& a) {
    if (!a.sinks.empty()) out_.push_back({to_ + gguf_name(family_, a.sinks), {from_ + a.sinks}, {a.heads}});
  }
  void add(const Project& p) {
    const bool one = p.out_features == 1;
    out_.push_back({.name = to_ + gguf_name(family_, p.name) + ".weight",
                    .parts = {from_ + p.name + ".weight"},
                    .part = {p.out_features, p.in_features},
                    .stored = one ? Shape{p.in_features} : Shape{}});
  }
  void add(const Moe& m) {
    out_.push_back({to_ + "ffn_gate_inp.weight", {from_ + m.router + ".weight"}, {m.experts, m.hidden}});
    if (m.router_bias) out_.push_back({to_ + "ffn_gate_inp.bias", {from_ + m.router + ".bias"}, {m.experts}});
    if (!m.correction.empty())
      out_.push_back({.name = to_ + "exp_probs_b.bias",
                      .parts = {from_ + m.correction},
                      .part = m.correction_shape,
                      .stored = {m.experts}});
    if (!m.expert_scale.empty()) no_place(family_, m.expert_scale);
    for (const auto& [def, name] :
         {std::pair{&m.gate, "ffn_gate_exps"}, {&m.up, "ffn_up_exps"}, {&m.down, "ffn_down_exps"}}) {
      stack(m, *def, to_ + name, ".weight", {def->out_features, def->in_features});
      if (def->bias) stack(m, *def, to_ + name, ".bias", {def->out_features});
    }
  }
  template <class Op>
  void add(const Op& op) {
    for (const SmallTensor& t : small_tensors_of(BlockOp(op))) no_place(family_, t.name);
  }

  void stack(const Moe& m, const LinearDef& def, const std::string& name, const char* suffix, const Shape& part) {
    GgufTensor t{name + suffix, {}, part, part.rank() == 2};
    for (int e = 0; e < m.experts; ++e) t.parts.push_back(from_ + m.of_expert(def, e).name + suffix);
    out_.push_back(std::move(t));
  }

  void norm(const std::string& name, int64_t features, NormKind kind) {
    out_.push_back({.name = to_ + gguf_name(family_, name) + ".weight",
                    .parts = {from_ + name + ".weight"},
                    .part = {features},
                    .added = added_to(kind)});
  }

  std::string from_, to_;
  const GgufFamily& family_;
  const Attention* attention_ = nullptr;
  bool paired_ = false;  // the file has the rows of q and k in another order
  std::vector<GgufTensor>& out_;
};

enum class Direction { to_gguf, from_gguf };

Tensor permuted(ConstTensorView rows, int64_t heads, Direction direction) {
  const int64_t count = rows.rows(), bytes = rows.bytes() / count, dim = count / heads, half = dim / 2;
  FEWBIT_ASSERT(count % heads == 0 && dim % 2 == 0);
  Tensor out = Tensor::host(rows.dtype, rows.shape);
  const auto* from = static_cast<const uint8_t*>(rows.data);
  auto* to = static_cast<uint8_t*>(out.view().data);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t head = row / dim * dim, r = row % dim;
    const int64_t paired = head + 2 * (r % half) + r / half;  // where the model's row lies in the file
    const bool write = direction == Direction::to_gguf;
    std::memcpy(to + (write ? paired : row) * bytes, from + (write ? row : paired) * bytes, static_cast<size_t>(bytes));
  }
  return out;
}

}  // namespace

Shape GgufTensor::shape() const {
  if (parts.size() == 1) return stored.rank() > 0 ? stored : part;
  std::vector<int64_t> dims = {static_cast<int64_t>(parts.size())};
  dims.insert(dims.end(), part.dims().begin(), part.dims().end());
  return Shape(std::span<const int64_t>(dims));
}

std::vector<GgufTensor> gguf_tensors(const ModelSpec& spec) {
  const GgufFamily& family = gguf_family_of(spec);
  std::vector<GgufTensor> out = {{"token_embd.weight", {spec.embed}, {spec.vocab, spec.hidden}}};
  for (int64_t layer = 0; layer < spec.layers; ++layer) Block(spec, layer, family, out);
  out.push_back({.name = "output_norm.weight",
                 .parts = {spec.final_norm},
                 .part = {spec.hidden},
                 .added = added_to(spec.final_norm_kind)});
  if (!spec.tied()) out.push_back({"output.weight", {spec.lm_head}, {spec.vocab, spec.hidden}});
  return out;
}

Tensor plus(ConstTensorView values, float added) {
  Tensor out = float_values(values);
  for (int64_t i = 0; i < out.numel(); ++i) out.as<float>()[i] += added;
  return out;
}

Tensor rows_to_gguf(ConstTensorView rows, int64_t heads) { return permuted(rows, heads, Direction::to_gguf); }
Tensor rows_from_gguf(ConstTensorView rows, int64_t heads) { return permuted(rows, heads, Direction::from_gguf); }

}  // namespace fewbit
