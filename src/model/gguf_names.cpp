#include "src/model/gguf_names.h"

#include <cstring>

#include "src/core/strings.h"

namespace fewbit {
namespace {

struct Family {
  std::string_view class_name, gguf;
  bool experts;
  bool pairs;  // interleaved rotary features
};
// The first line of a name in the file is what it is read as.
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", false, true},  {"MistralForCausalLM", "llama", false, true},
    {"MixtralForCausalLM", "llama", true, true}, {"Qwen2ForCausalLM", "qwen2", false, false},
    {"Qwen3ForCausalLM", "qwen3", false, false}, {"Qwen3MoeForCausalLM", "qwen3moe", true, false},
};

const Family& family_of(const ModelSpec& spec) {
  std::string known;
  for (const Family& f : kFamilies) {
    if (f.class_name == spec.arch) return f;
    known += ' ';
    known += f.class_name;
  }
  fail(ErrorKind::unsupported, spec.arch + ": no GGUF of this architecture is written; known:" + known);
}

struct Name {
  std::string_view model, gguf;
};
// Relative to the block: "model.layers.7." here, "blk.7." there.
constexpr Name kNames[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
};

std::string gguf_name(const std::string& model) {
  for (const Name& n : kNames)
    if (n.model == model) return std::string(n.gguf);
  bug("no GGUF name for " + model);
}

// Collects the tensors of one block.
class Block {
 public:
  Block(const ModelSpec& spec, int64_t layer, bool pairs, std::vector<GgufTensor>& out)
      : from_(spec.prefix(layer)), to_("blk." + std::to_string(layer) + "."), pairs_(pairs), out_(out) {
    for (const BlockOp& op : spec.block(layer))
      if (const auto* a = std::get_if<Attention>(&op)) attention_ = a;
    for (const BlockOp& op : spec.block(layer)) std::visit([&](const auto& o) { add(o); }, op);
  }

 private:
  void add(const Norm& n) { vector(n.name, n.features); }
  void add(const HeadNorm& n) { vector(n.name, n.head_dim); }
  void add(const Linears& group) {
    for (const LinearDef& l : group.items) {
      const int64_t heads = !pairs_                  ? 0
                            : l.out == attention_->q ? attention_->heads
                            : l.out == attention_->k ? attention_->kv_heads
                                                     : 0;
      const std::string name = to_ + gguf_name(l.name);
      out_.push_back(
          {name + ".weight", {from_ + l.name + ".weight"}, {l.out_features, l.in_features}, true, heads});
      if (l.bias)
        out_.push_back({name + ".bias", {from_ + l.name + ".bias"}, {l.out_features}, false, heads});
    }
  }
  void add(const Moe& m) {
    out_.push_back({to_ + "ffn_gate_inp.weight", {from_ + m.router + ".weight"}, {m.experts, m.hidden}});
    for (const auto& [def, name] :
         {std::pair{&m.gate, "ffn_gate_exps"}, {&m.up, "ffn_up_exps"}, {&m.down, "ffn_down_exps"}}) {
      GgufTensor t{to_ + name + ".weight", {}, {def->out_features, def->in_features}, true};
      for (int e = 0; e < m.experts; ++e) t.parts.push_back(from_ + m.of_expert(*def, e).name + ".weight");
      out_.push_back(std::move(t));
    }
  }
  template <class Op>
  void add(const Op&) {}  // has no weights

  void vector(const std::string& name, int64_t features) {
    out_.push_back({to_ + gguf_name(name) + ".weight", {from_ + name + ".weight"}, {features}});
  }

  std::string from_, to_;
  bool pairs_;
  const Attention* attention_ = nullptr;
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
    std::memcpy(to + (write ? paired : row) * bytes, from + (write ? row : paired) * bytes,
                static_cast<size_t>(bytes));
  }
  return out;
}

}  // namespace

Shape GgufTensor::shape() const {
  if (parts.size() == 1) return part;
  std::vector<int64_t> dims = {static_cast<int64_t>(parts.size())};
  dims.insert(dims.end(), part.dims().begin(), part.dims().end());
  return Shape(std::span<const int64_t>(dims));
}

std::string_view gguf_architecture(const ModelSpec& spec) { return family_of(spec).gguf; }

std::string_view class_of_gguf(const std::string& architecture, bool experts) {
  std::string known;
  for (const Family& f : kFamilies) {
    if (f.gguf == architecture && f.experts == experts) return f.class_name;
    known += ' ';
    known += f.gguf;
  }
  fail(ErrorKind::unsupported, "general.architecture: found \"" + architecture + "\"" +
                                   (experts ? " with experts" : "") + "; known:" + known);
}

std::vector<GgufTensor> gguf_tensors(const ModelSpec& spec) {
  const bool pairs = family_of(spec).pairs;
  std::vector<GgufTensor> out = {{"token_embd.weight", {spec.embed}, {spec.vocab, spec.hidden}}};
  for (int64_t layer = 0; layer < spec.layers; ++layer) Block(spec, layer, pairs, out);
  out.push_back({"output_norm.weight", {spec.final_norm}, {spec.hidden}});
  if (!spec.tied()) out.push_back({"output.weight", {spec.lm_head}, {spec.vocab, spec.hidden}});
  return out;
}

Tensor rows_to_gguf(ConstTensorView rows, int64_t heads) { return permuted(rows, heads, Direction::to_gguf); }
Tensor rows_from_gguf(ConstTensorView rows, int64_t heads) {
  return permuted(rows, heads, Direction::from_gguf);
}

}  // namespace fewbit
