#pragma once
// ModelSpec: an architecture as a list of small ops over named activation slots. The runner interprets it,
// the calibrator hooks it, transforms derive from it who can absorb a scale; nobody writes a second list.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "src/core/tensor.h"

namespace fewbit {

class WeightStore;
class ConfigView;

// Activation slots of a block, [tokens, features]. x is the residual stream.
enum class Slot : uint8_t { x, h, q, k, v, attn, gate, up, act, qkv, gate_up, count };
inline constexpr int kSlots = static_cast<int>(Slot::count);
const char* name_of(Slot s);

enum class NormKind : uint8_t { rms, rms_plus_one };  // x * w, or x * (1 + w) (Gemma)
constexpr float weight_offset(NormKind kind) { return kind == NormKind::rms_plus_one ? 1.f : 0.f; }
enum class Activation : uint8_t { silu, gelu_tanh };

// Names of weights are relative to the block prefix ("model.layers.7."); ".weight" / ".bias" are appended.
struct Norm {
  Slot in, out;
  NormKind kind;
  std::string name;
  int64_t features;
  float eps;
};
struct LinearDef {
  std::string name;
  Slot out;
  int64_t out_features, in_features;
  bool bias = false;
};
// Linears that share one input: one Gram matrix serves them all.
struct Linears {
  Slot in;
  std::vector<LinearDef> items;
};
// The outputs of a fused linear, side by side in `in`, each to a slot of its own.
struct SplitPart {
  Slot out;
  int64_t features;
};
struct Split {
  Slot in;
  std::vector<SplitPart> parts;
};
struct HeadNorm {  // in place, per head
  Slot slot;
  NormKind kind;
  std::string name;
  int64_t head_dim;
  float eps;
};
struct RopeParams {
  std::vector<float> inv_freq;  // [rot / 2], scaling of the config already applied
  float attention_scale = 1;
  // LongRoPE: another table for runs whose sequences may have more than `original_positions`; 0: one table for all.
  std::vector<float> long_inv_freq{};
  int64_t original_positions = 0;

  bool turns_long(int64_t longest) const { return original_positions > 0 && longest > original_positions; }
  // That of a run whose sequences have up to `longest` positions.
  const std::vector<float>& table(int64_t longest) const { return turns_long(longest) ? long_inv_freq : inv_freq; }
};
struct Rope {  // in place
  std::vector<Slot> slots;
  int64_t head_dim;
  RopeParams params;
};
struct Attention {
  Slot q, k, v, out;
  int heads, kv_heads;
  int64_t head_dim;
  float scale;
  int64_t window = 0;  // 0 = full
  float softcap = 0;   // 0 = none
};
struct GatedAct {
  Slot gate, up, out;
  Activation act;
};
struct AddTo {  // out += in
  Slot in, out;
};
// Mixture of experts: every token goes to the `top_k` experts that the router likes best; out becomes the sum
// of down(act(gate) * up) of those, weighted by the router's softmax. out may be in.
struct Moe {
  Slot in, out;
  std::string router;  // "mlp.gate", always dense [experts, hidden]
  int64_t hidden;
  int experts, top_k;
  bool renormalise;          // the weights of the chosen experts sum to 1
  std::string expert_name;   // "mlp.experts."; the number of the expert follows
  LinearDef gate, up, down;  // of one expert: names behind "mlp.experts.7.", slots as in a dense block
  Activation act;

  // A linear of an expert with its name in the block: "mlp.experts.7.gate_proj".
  LinearDef of_expert(const LinearDef& def, int expert) const {
    LinearDef named = def;
    named.name = expert_name + std::to_string(expert) + "." + def.name;
    return named;
  }
};

using BlockOp = std::variant<Norm, Linears, Split, HeadNorm, Rope, Attention, GatedAct, AddTo, Moe>;

// The linears of an op with their names in the block, in the order of the checkpoint's model; empty for
// others.
std::vector<LinearDef> linears_of(const BlockOp&);

struct ModelSpec {
  std::string arch;  // "LlamaForCausalLM"
  int64_t layers = 0, hidden = 0, vocab = 0, max_positions = 0;
  std::string block_prefix = "model.layers.";
  std::string embed = "model.embed_tokens.weight";
  float embed_scale = 1;
  std::string final_norm = "model.norm.weight";
  NormKind final_norm_kind = NormKind::rms;
  float final_norm_eps = 1e-5f;
  std::string lm_head = "lm_head.weight";  // equals `embed` when tied
  float logit_softcap = 0;
  int64_t bos = -1;
  std::vector<int64_t> eos;
  std::vector<std::vector<BlockOp>> kinds;  // distinct kinds of block
  std::vector<int> kind_of_layer;           // [layers]; empty = all kind 0

  int kind(int64_t layer) const { return kind_of_layer.empty() ? 0 : kind_of_layer[static_cast<size_t>(layer)]; }
  const std::vector<BlockOp>& block(int64_t layer) const { return kinds[static_cast<size_t>(kind(layer))]; }
  std::string prefix(int64_t layer) const { return block_prefix + std::to_string(layer) + "."; }
  bool tied() const { return lm_head == embed; }
};

// The attention of a block, null where it has none, and the name of its module in the block, "self_attn": that
// of the linear which makes its keys.
const Attention* attention_of(const std::vector<BlockOp>& block);
std::string attention_module(const std::vector<BlockOp>& block);
// Of LongRoPE's two tables, the one that a run takes whose sequences have up to `longest` positions: whether it is the
// long one (false where there is one for all), and that as a line for people ("" then).
bool turns_long(const ModelSpec&, int64_t longest);
std::string long_rope_line(const ModelSpec&, int64_t longest);
// The slot that a linear writes for `slot`: the fused one where a Split takes it apart, else the slot itself.
Slot fused_source(const std::vector<BlockOp>& block, Slot slot);

// A linear of the whole model, with its full name.
struct NamedLinear {
  std::string name;  // "model.layers.7.self_attn.q_proj", no suffix
  int64_t layer;
  int64_t out, in;
  bool bias;
};
std::vector<NamedLinear> linears_of(const ModelSpec&);
// The matrices outside the blocks: "model.embed_tokens" and, unless it is tied to that, "lm_head"; [vocab, hidden]
// each. They stay as they are unless a recipe names them.
inline constexpr int64_t kOutsideBlocks = -1;  // their NamedLinear::layer
std::vector<NamedLinear> ends_of(const ModelSpec&);

// A dense tensor (norms, biases, routers, embeddings, head) that must exist, with its shape.
struct NamedDense {
  std::string name;
  Shape shape;
};
std::vector<NamedDense> dense_tensors_of(const ModelSpec&);
// Full names of the routers: linear layers in the model's own code that are never quantized.
std::vector<std::string> routers_of(const ModelSpec&);

// Width of a slot in a block: the output features of what writes it.
int64_t slot_features(const ModelSpec&, const std::vector<BlockOp>& block, Slot);

// All complaints at once, one line each: missing tensors, wrong shapes and dtypes. Linears and ends named in `packed`
// are present in packed form and are not looked for as "<name>.weight".
std::vector<std::string> check_against(const ModelSpec&, const WeightStore&, const std::vector<std::string>& packed);

std::string describe(const ModelSpec&);  // several lines, for `convert inspect`
int64_t parameter_count(const ModelSpec&);

}  // namespace fewbit
