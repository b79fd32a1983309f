#include "src/model/gguf/names.h"

#include <fmt/format.h>

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
    // of a state space, and of what takes its place
    {"mamba.in_proj", "ssm_in"},
    {"mamba.conv1d", "ssm_conv1d"},
    {"mamba.A_log", "ssm_a"},
    {"mamba.dt_bias", "ssm_dt.bias"},
    {"mamba.D", "ssm_d"},
    {"mamba.norm.weight", "ssm_norm.weight"},
    {"mamba.out_proj", "ssm_out"},
    {"mixer.q_proj", "attn_q"},
    {"mixer.k_proj", "attn_k"},
    {"mixer.v_proj", "attn_v"},
    {"mixer.o_proj", "attn_output"},
    {"mixer.in_proj", "ssm_in"},
    {"mixer.conv1d", "ssm_conv1d"},
    {"mixer.A_log", "ssm_a"},
    {"mixer.dt_bias", "ssm_dt.bias"},
    {"mixer.D", "ssm_d"},
    {"mixer.norm.weight", "ssm_norm.weight"},
    {"mixer.out_proj", "ssm_out"},
    // of latent attention and its choice of keys
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.indexer.wq_b", "indexer.attn_q_b"},
    {"self_attn.indexer.wk", "indexer.attn_k"},
    {"self_attn.indexer.k_norm", "indexer.k_norm"},
    {"self_attn.indexer.weights_proj", "indexer.proj"},
};

[[noreturn]] void no_place(const GgufFamily& family, const std::string& model) {
  fail(ErrorKind::unsupported, fmt::format("{} has no place in GGUF of architecture {}", model, family.arch));
}

// "" where there is none.
std::string_view find_name(const GgufFamily& family, std::string_view model) {
  for (const GgufName& n : family.names)
    if (n.model == model) return n.gguf;
  for (const GgufName& n : kNames)
    if (n.model == model) return n.gguf;
  return "";
}

std::string gguf_name(const GgufFamily& family, const std::string& model) {
  const std::string_view found = find_name(family, model);
  if (found.empty()) no_place(family, model);
  return std::string(found);
}

// Whether neighbouring features of a head turn together in the model's own order of rows: of attention's queries.
bool turns_neighbours(const ModelSpec& spec) {
  for (const auto& block : spec.kinds)
    for (const BlockOp& op : block)
      if (const auto* r = std::get_if<Rope>(&op); r && r->slots.front() != Slot::index_q) return r->neighbours;
  return false;
}

// The parts of a fused linear, each of which has a tensor of its own in the file: gate and up of one that is shared.
struct Halves {
  std::string_view fused, first, second;
};
constexpr Halves kHalves[] = {{"shared_mlp.input_linear", "ffn_gate_shexp", "ffn_up_shexp"}};

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
    if (delta_ && delta_->each_channel != (family_.recurrent.kind == GgufRecurrent::Kind::channel_decay))
      no_place(family_, delta_->a_log);
    if (delta_ && !delta_->each_channel && !family_.delta_net) no_place(family_, delta_->a_log);
    latent_ = op_of<LatentAttention>(spec.block(layer));
    scan_ = op_of<StateScan>(spec.block(layer));
    sparse_ = op_of<Moe>(spec.block(layer)) != nullptr;
    paired_ = family_.pairs && !turns_neighbours(spec);
    if (!family_.pairs && turns_neighbours(spec)) no_place(family_, "a rotation of neighbouring features");
    for (const BlockOp& op : spec.block(layer)) std::visit([&](const auto& o) { add(o); }, op);
  }

 private:
  void add(const Norm& n) {
    if (!n.bare) return norm(n.name, n.features, n.kind);
    out_.push_back({to_ + gguf_name(family_, n.name), {from_ + n.name}, {n.features}});
  }
  void add(const HeadNorm& n) {
    if (!n.name.empty()) norm(n.name, n.head_dim, n.kind);
  }
  // An expert beside no others is the MLP.
  std::string linear_name(std::string name) const {
    if (!sparse_ && name.ends_with("_shexp")) name.resize(name.size() - std::string_view("_shexp").size());
    return to_ + name;
  }
  // Rows [begin + i * stride, …) of `l`, `count` of them in every one of `blocks`, as a tensor of their own.
  void piece(const LinearDef& l, const std::string& name, int64_t begin, int64_t count, int64_t stride, int64_t blocks,
             bool turned) {
    GgufTensor t{.name = to_ + name + ".weight",
                 .parts = {from_ + l.name + ".weight"},
                 .part = {l.out_features, l.in_features},
                 .linear = true,
                 .of = l.out_features};
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t i = 0; i < count; ++i) t.rows.push_back(b * stride + begin + i);
    if (turned) t.turned = blocks;
    t.stored = blocks == 1 ? Shape{count, l.in_features}
               : turned    ? Shape{blocks, l.in_features, count}
                           : Shape{blocks, count, l.in_features};
    out_.push_back(std::move(t));
  }
  // Whether the linear is in the file in pieces, and then they are here.
  bool in_pieces(const LinearDef& l) {
    if (latent_ && l.name == latent_->kv_b) {
      const int64_t nope = latent_->nope, each = nope + latent_->value;
      piece(l, "attn_k_b", 0, nope, each, latent_->heads, true);
      piece(l, "attn_v_b", nope, latent_->value, each, latent_->heads, false);
      return true;
    }
    for (const Halves& h : kHalves)
      if (h.fused == l.name) {
        const int64_t half = l.out_features / 2;
        piece(l, linear_name(std::string(h.first)).substr(to_.size()), 0, half, half, 1, false);
        piece(l, linear_name(std::string(h.second)).substr(to_.size()), half, half, half, 1, false);
        return true;
      }
    return false;
  }
  void add(const Linears& group) {
    for (const LinearDef& l : group.items) {
      if (in_pieces(l)) continue;
      const std::string name = linear_name(gguf_name(family_, l.name));
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
    if (delta_ && !delta_->each_channel && l.out == Slot::qkv)
      return value_heads(family_, delta_, delta_->v_dim, 2 * delta_->k_heads * delta_->k_dim);
    if (delta_ && l.out == Slot::z) return value_heads(family_, delta_, delta_->v_dim);
    return {};
  }
  void add(const ShortConv& c) {
    const bool channels = delta_ && delta_->each_channel;  // of q, k and v one by one, with a dimension of 1
    const std::string name = to_ + gguf_name(family_, c.name);
    out_.push_back({.name = name + ".weight",
                    .parts = {from_ + c.name + ".weight"},
                    .part = {c.channels, 1, c.taps},
                    .rows = delta_ && !channels
                                ? value_heads(family_, delta_, delta_->v_dim, 2 * delta_->k_heads * delta_->k_dim)
                                : GgufOrder(),
                    .stored = channels ? Shape{} : Shape{c.channels, c.taps}});
    if (c.bias) out_.push_back({name + ".bias", {from_ + c.name + ".bias"}, {c.channels}});
  }
  void add(const DeltaRule& d) {
    out_.push_back({.name = to_ + gguf_name(family_, d.a_log),
                    .parts = {from_ + d.a_log},
                    .part = d.a_log_shape.rank() > 0 ? d.a_log_shape : Shape{d.v_heads},
                    .rows = value_heads(family_, &d, 1),
                    .stored = d.each_channel ? Shape{d.v_heads, 1} : Shape{},
                    .decay = true});
    out_.push_back({.name = to_ + gguf_name(family_, d.dt_bias),
                    .parts = {from_ + d.dt_bias},
                    .part = {d.rates()},
                    .rows = value_heads(family_, &d, 1)});
  }
  void add(const StateScan& s) {
    if (family_.recurrent.kind != GgufRecurrent::Kind::state_space) no_place(family_, s.a_log);
    const Shape column{s.heads, 1};
    out_.push_back({.name = to_ + gguf_name(family_, s.a_log),
                    .parts = {from_ + s.a_log},
                    .part = {s.heads},
                    .stored = column,
                    .decay = true});
    out_.push_back({to_ + gguf_name(family_, s.dt_bias), {from_ + s.dt_bias}, {s.heads}});
    out_.push_back(
        {.name = to_ + gguf_name(family_, s.d), .parts = {from_ + s.d}, .part = {s.heads}, .stored = column});
  }
  // The norm behind a state space has its weight by groups; else a value for the layer.
  void add(const Scale& s) {
    const bool grouped = scan_ && s.features > 1;
    out_.push_back({.name = to_ + gguf_name(family_, s.name),
                    .parts = {from_ + s.name},
                    .part = {s.features},
                    .stored = grouped ? Shape{scan_->groups, s.features / scan_->groups} : Shape{}});
  }
  void add(const BiasedNorm& n) {
    for (const char* suffix : {".weight", ".bias"})
      out_.push_back({to_ + gguf_name(family_, n.name) + suffix, {from_ + n.name + suffix}, {n.features}});
  }
  void add(const TokenInput&) {}  // the whole model's
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
    if (!m.expert_scale.empty())
      out_.push_back({to_ + gguf_name(family_, m.expert_scale), {from_ + m.expert_scale}, {m.experts}});
    for (const auto& [def, name] :
         {std::pair{&m.gate, "ffn_gate_exps"}, {&m.up, "ffn_up_exps"}, {&m.down, "ffn_down_exps"}}) {
      if (def->name.empty()) continue;  // none
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
  const LatentAttention* latent_ = nullptr;
  const StateScan* scan_ = nullptr;
  bool sparse_ = false;
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

void check_gguf_rows(const ModelSpec& spec, int64_t bytes, const std::string& file) {
  int64_t rows = 0;
  for (const NamedLinear& l : linears_of(spec)) {
    rows += l.out;
    if (rows > bytes)
      fail(ErrorKind::checkpoint,
           fmt::format("{}: the linears up to {} have {} outputs by the metadata, and the file has {} bytes; it is "
                       "damaged or cut",
                       file, l.name, rows, bytes));
  }
}

std::vector<GgufTensor> gguf_tensors(const ModelSpec& spec) {
  const GgufFamily& family = gguf_family_of(spec);
  std::vector<GgufTensor> out = {{"token_embd.weight", {spec.embed}, {spec.vocab, spec.hidden}}};
  if (const TokenInput* t = token_input_of(spec)) {
    const int64_t features = t->layers * t->features;
    out.push_back({"per_layer_token_embd.weight", {t->table}, {spec.vocab, features}});
    out.push_back({"per_layer_model_proj.weight", {t->projection}, {features, spec.hidden}});
    out.push_back({"per_layer_proj_norm.weight", {t->norm}, {t->features}});
  }
  for (int64_t layer = 0; layer < spec.layers; ++layer) Block(spec, layer, family, out);
  out.push_back({.name = std::string(family.final_norm) + ".weight",
                 .parts = {spec.final_norm},
                 .part = {spec.hidden},
                 .added = added_to(spec.final_norm_kind)});
  if (!spec.tied()) out.push_back({"output.weight", {spec.lm_head}, {spec.vocab, spec.hidden}});
  return out;
}

const LinearDef* gguf_mlp_down(const GgufFamily& family, const std::vector<BlockOp>& block) {
  const bool sparse = op_of<Moe>(block) != nullptr;
  for (const BlockOp& op : block)
    if (const auto* group = std::get_if<Linears>(&op))
      for (const LinearDef& l : group->items)
        for (const std::string_view name : {"ffn_down", "ffn_down_shexp"})
          if (find_name(family, l.name) == name && (name == "ffn_down" || !sparse)) return &l;
  return nullptr;
}

int64_t gguf_run(const ModelSpec& spec, const NamedLinear& l) {
  const auto& block = spec.block(l.layer);
  const LatentAttention* latent = op_of<LatentAttention>(block);
  if (latent && l.name == spec.prefix(l.layer) + latent->kv_b) return 1;
  const DeltaRule* d = op_of<DeltaRule>(block);
  if (!d || value_heads(family_of(spec).gguf, d, 1).empty()) return l.in;
  for (const BlockOp& op : block)
    if (const auto* group = std::get_if<Linears>(&op); group && group->in == d->out)
      for (const LinearDef& def : group->items)
        if (spec.prefix(l.layer) + def.name == l.name) return d->v_dim;
  return l.in;
}

}  // namespace fewbit
