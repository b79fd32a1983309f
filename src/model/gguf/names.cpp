#include "src/model/gguf/names.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "src/model/checkpoint.h"
#include "src/model/family.h"

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
    {"linear_attn.in_proj_qkvz", "ssm_in"},  // by key head; newer files have two tensors of it
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
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

template <class Op>
const Op* op_of(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}

// The value heads of a delta net in a file, where their order is another; `dim` rows of each, behind `before` others.
GgufOrder value_heads(const GgufFamily& family, const DeltaRule* d, int64_t dim, int64_t before = 0) {
  GgufOrder order;
  if (!family.tiled || !d || d->v_heads == d->k_heads) return order;
  for (int64_t i = 0; i < before; ++i) order.push_back(i);
  const int64_t each = d->v_heads / d->k_heads;
  for (int64_t turn = 0; turn < each; ++turn)
    for (int64_t key = 0; key < d->k_heads; ++key)
      for (int64_t i = 0; i < dim; ++i) order.push_back(before + (key * each + turn) * dim + i);
  return order;
}

float added_to(NormKind kind) { return kind == NormKind::rms_plus_one ? 1.f : 0.f; }

// Collects the tensors of one block.
class Block {
 public:
  Block(const ModelSpec& spec, int64_t layer, const GgufFamily& family, std::vector<GgufTensor>& out)
      : from_(spec.prefix(layer)), to_("blk." + std::to_string(layer) + "."), family_(family), out_(out) {
    attention_ = op_of<Attention>(spec.block(layer));
    delta_ = op_of<DeltaRule>(spec.block(layer));
    if (delta_ && !family_.delta_net) no_place(family_, delta_->a_log);
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
      const std::string name = to_ + gguf_name(family_, l.name);
      GgufTensor weight{name + ".weight", {from_ + l.name + ".weight"}, {l.out_features, l.in_features}, true};
      weight.rows = rows_of(l);
      if (delta_ && group.in == delta_->out) {
        weight.runs = value_heads(family_, delta_, 1);
        weight.run = delta_->v_dim;
      }
      if (l.bias) out_.push_back({name + ".bias", {from_ + l.name + ".bias"}, {l.out_features}, false, weight.rows});
      out_.push_back(std::move(weight));
    }
  }
  // Of q and k where neighbours turn there and halves here; of what makes or weighs the values of a delta net.
  GgufOrder rows_of(const LinearDef& l) const {
    if (attention_ && paired_ && l.out == attention_->q) return paired_rows(attention_->heads, attention_->head_dim);
    if (attention_ && paired_ && l.out == attention_->k) return paired_rows(attention_->kv_heads, attention_->head_dim);
    if (delta_ && l.out == Slot::qkv)
      return value_heads(family_, delta_, delta_->v_dim, 2 * delta_->k_heads * delta_->k_dim);
    if (delta_ && l.out == Slot::z) return value_heads(family_, delta_, delta_->v_dim);
    return {};
  }
  void add(const ShortConv& c) {
    if (!delta_) no_place(family_, c.name);
    out_.push_back({.name = to_ + gguf_name(family_, c.name) + ".weight",
                    .parts = {from_ + c.name + ".weight"},
                    .part = {c.channels, 1, c.taps},
                    .rows = value_heads(family_, delta_, delta_->v_dim, 2 * delta_->k_heads * delta_->k_dim),
                    .stored = {c.channels, c.taps}});
  }
  void add(const DeltaRule& d) {
    out_.push_back({.name = to_ + gguf_name(family_, d.a_log),
                    .parts = {from_ + d.a_log},
                    .part = {d.v_heads},
                    .rows = value_heads(family_, &d, 1),
                    .decay = true});
    out_.push_back({.name = to_ + gguf_name(family_, d.dt_bias),
                    .parts = {from_ + d.dt_bias},
                    .part = {d.v_heads},
                    .rows = value_heads(family_, &d, 1)});
  }
  void add(const Attention& a) {
    if (!a.sinks.empty()) out_.push_back({to_ + gguf_name(family_, a.sinks), {from_ + a.sinks}, {a.heads}});
  }
  void add(const Project& p) {
    const bool one = p.out_features == 1;
    out_.push_back({.name = to_ + gguf_name(family_, p.name) + ".weight",
                    .parts = {from_ + p.name + ".weight"},
                    .part = {p.out_features, p.in_features},
                    .rows = delta_ && p.out_features == delta_->v_heads ? value_heads(family_, delta_, 1) : GgufOrder(),
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
  const DeltaRule* delta_ = nullptr;
  bool paired_ = false;  // the file has the rows of q and k in another order
  std::vector<GgufTensor>& out_;
};

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

int64_t gguf_run(const ModelSpec& spec, const NamedLinear& l) {
  const auto& block = spec.block(l.layer);
  const DeltaRule* d = op_of<DeltaRule>(block);
  if (!d || value_heads(family_of(spec).gguf, d, 1).empty()) return l.in;
  for (const BlockOp& op : block)
    if (const auto* group = std::get_if<Linears>(&op); group && group->in == d->out)
      for (const LinearDef& def : group->items)
        if (spec.prefix(l.layer) + def.name == l.name) return d->v_dim;
  return l.in;
}

Tensor computed_values(const GgufTensor& g, ConstTensorView values, GgufDirection direction) {
  const bool to = direction == GgufDirection::to_gguf;
  Tensor out = float_values(values);
  for (int64_t i = 0; i < out.numel(); ++i) {
    float& v = out.as<float>()[i];
    if (g.decay)
      v = to ? -std::exp(v) : std::log(-v);
    else
      v += to ? g.added : -g.added;
  }
  return out;
}

Tensor reordered(ConstTensorView rows, const GgufOrder& order, GgufDirection direction) {
  if (order.empty()) return clone_host(rows);
  const auto count = static_cast<int64_t>(order.size()), bytes = rows.bytes() / count;
  Tensor out = Tensor::host(rows.dtype, rows.shape);
  const auto* from = static_cast<const uint8_t*>(rows.data);
  auto* to = static_cast<uint8_t*>(out.view().data);
  for (int64_t there = 0; there < count; ++there) {
    const int64_t here = order[static_cast<size_t>(there)];
    const bool write = direction == GgufDirection::to_gguf;
    std::memcpy(to + (write ? there : here) * bytes, from + (write ? here : there) * bytes, static_cast<size_t>(bytes));
  }
  return out;
}

Tensor reordered_runs(ConstTensorView rows, const GgufOrder& order, int64_t run_bytes, GgufDirection direction) {
  Tensor out = clone_host(rows);
  const int64_t row_bytes = run_bytes * static_cast<int64_t>(order.size());
  if (order.empty()) return out;
  FEWBIT_ASSERT(rows.bytes() % row_bytes == 0);
  const auto* from = static_cast<const uint8_t*>(rows.data);
  auto* to = static_cast<uint8_t*>(out.view().data);
  for (int64_t row = 0; row < rows.bytes(); row += row_bytes)
    for (size_t there = 0; there < order.size(); ++there) {
      const int64_t a = row + static_cast<int64_t>(there) * run_bytes, b = row + order[there] * run_bytes;
      const bool write = direction == GgufDirection::to_gguf;
      std::memcpy(to + (write ? a : b), from + (write ? b : a), static_cast<size_t>(run_bytes));
    }
  return out;
}

GgufOrder paired_rows(int64_t heads, int64_t head_dim) {
  GgufOrder order(static_cast<size_t>(heads * head_dim));
  const int64_t half = head_dim / 2;
  FEWBIT_ASSERT(head_dim % 2 == 0);
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t r = 0; r < head_dim; ++r)
      order[static_cast<size_t>(head * head_dim + 2 * (r % half) + r / half)] = head * head_dim + r;
  return order;
}

}  // namespace fewbit
