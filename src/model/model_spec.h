#pragma once
// ModelSpec: an architecture as a list of small ops over named activation slots. The runner interprets it,
// the calibrator hooks it, transforms derive from it who can absorb a scale; nobody writes a second list.
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/tensor.h"
#include "src/model/block_ops.h"

namespace fewbit {

class WeightStore;
class ConfigView;

// The linears of an op with their names in the block, in the order of the checkpoint's model; empty for
// others.
std::vector<LinearDef> linears_of(const BlockOp&);

// A tensor of an op that stays as it is stored, with its name in the block: norms, routers, convolutions, biases.
struct SmallTensor {
  std::string name;  // "input_layernorm.weight"
  Shape shape;
  bool exact = false;  // runs in f32 whatever the compute dtype
  int64_t below = 0;   // > 0: integers from 0 to below it, no floats
  // By which BlockWeights::vectors knows it: without ".weight".
  std::string key() const;
};
std::vector<SmallTensor> small_tensors_of(const BlockOp&);

struct ModelSpec {
  std::string arch;  // "LlamaForCausalLM"
  int64_t layers = 0, hidden = 0, vocab = 0, max_positions = 0;
  std::string block_prefix = "model.layers.";
  std::string embed = "model.embed_tokens.weight";
  float embed_scale = 1;
  std::string final_norm = "model.norm.weight";
  NormKind final_norm_kind = NormKind::rms;
  float final_norm_eps = 1e-5f;
  // Residual streams of a token, side by side; above 1 they become one in front of the final norm, by the tensors
  // `streams_name`_fn, _base and _scale (kernels/streams/streams.h).
  int streams = 1;
  std::string streams_name{};
  float streams_eps = 0;
  int64_t width() const { return hidden * streams; }  // of a block's input
  std::string lm_head = "lm_head.weight";             // equals `embed` when tied
  float logit_softcap = 0;
  float logit_scale = 1;  // before the cap
  int64_t bos = -1;
  std::vector<int64_t> eos;
  std::vector<std::vector<BlockOp>> kinds;  // distinct kinds of block
  std::vector<int> kind_of_layer;           // [layers]; empty = all kind 0

  int kind(int64_t layer) const { return kind_of_layer.empty() ? 0 : kind_of_layer[static_cast<size_t>(layer)]; }
  const std::vector<BlockOp>& block(int64_t layer) const { return kinds[static_cast<size_t>(kind(layer))]; }
  std::string prefix(int64_t layer) const { return block_prefix + std::to_string(layer) + "."; }
  bool tied() const { return lm_head == embed; }
};

// The attention of a block, null where it has none; the same where it makes keys of its own; and the name of its module
// in the block, "self_attn": that of the linear which makes its keys.
const Attention* attention_of(const std::vector<BlockOp>& block);
const Attention* own_attention_of(const std::vector<BlockOp>& block);
std::string attention_module(const std::vector<BlockOp>& block);
// Attention over shared keys; null where a block has none.
const SharedKeyAttention* shared_key_attention_of(const std::vector<BlockOp>& block);
// Latent attention and its choice of keys; null where a block has none.
const LatentAttention* latent_attention_of(const std::vector<BlockOp>& block);
const KeyChoice* key_choice_of(const std::vector<BlockOp>& block);
// Whether an op looks at other tokens by scores.
bool attends(const BlockOp&);
// Keys of a choice that blocks behind its own look at too; 0 where none does.
int64_t choice_that_lasts(const ModelSpec&);
// What its blocks take from the token alone; null where none does. All have the same tensors.
const TokenInput* token_input_of(const ModelSpec&);
// Whether blocks read the ids of the tokens.
bool reads_tokens(const ModelSpec&);
// The layer whose keys and values a layer reads: itself, unless its attention says otherwise.
int64_t keys_layer(const ModelSpec&, int64_t layer);
// Whether blocks read more of those before them than the residual stream.
bool keeps_slots(const ModelSpec&);
// Whether some layer keeps a matrix of every head in place of keys and values.
bool has_state(const ModelSpec&);
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
  int64_t below = 0;  // > 0: integers, see SmallTensor
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
