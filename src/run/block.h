#pragma once
// One decoder block on a device, and the interpreter of its op list. Calibration, perplexity and the engine
// all run this one interpreter; they differ in what stands behind the Attention op.
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/decode/experts/few_experts.h"
#include "kernels/kivi/kivi_cache.h"
#include "kernels/model/gated_act.h"
#include "src/model/model_spec.h"
#include "src/run/linear.h"

namespace fewbit {

class PhaseClock;     // src/run/head.h
struct RaggedLayout;  // src/run/paged/ragged.h

// The experts of a Moe for a few tokens whose routing stays on the device, over the block's own linears; and room for
// that routing, of kFewTokens tokens.
struct FewExperts {
  ExpertMixture mixture;
  Tensor logits, ids, shares;  // f32 [tokens, experts], i32 and f32 [tokens, top_k]
};
struct BlockWeights {
  std::map<std::string, Linear> linears;  // by name relative to the block: "self_attn.q_proj"
  // Norm weights, routers and the rest of small_tensors_of, by SmallTensor::key(); compute dtype, or f32 where exact.
  std::map<std::string, Tensor> vectors;
  // Made by prepare_few_experts() (src/run/moe.h), since a recorded step allocates nothing: by Moe::expert_name, and
  // memory that other ops work in, by what they are named after.
  std::map<std::string, FewExperts> few_experts;
  std::map<std::string, std::vector<Tensor>> rooms;
};
// Memory of `shape` that an op works in: the first rows of BlockWeights::rooms[name][index] where they are enough, else
// its own.
struct Room {
  Tensor own;
  TensorView rows;
};
Room room_of(Exec&, const BlockWeights&, const std::string& name, size_t index, DType, const Shape& shape);
// Bytes of a block that one pass over `tokens` tokens reads: of a mixture of experts, those of as many
// experts as the tokens can be sent to.
int64_t weight_bytes(const std::vector<BlockOp>&, const BlockWeights&, int64_t tokens);
// Why linears do not run as they are packed: reason -> names. `lines_of` says each reason once, with how many it holds
// for.
using LinearNotes = std::map<std::string, std::vector<std::string>>;
std::vector<std::string> lines_of(const LinearNotes&);

// The block's small tensors alone: norms and routers.
BlockWeights load_vectors(Exec&, const Checkpoint&, int64_t layer, DType dtype);
// The bias of a linear that has one, in `dtype`; empty otherwise.
Tensor load_bias(Exec&, const Checkpoint&, const NamedLinear&, DType dtype);
// Of several ranks, what this one has of the block.
BlockWeights load_block(Exec&, const Checkpoint&, int64_t layer, const LoadOptions&, LinearNotes* notes);

// What the ops of a block work on: one tensor per slot, [tokens, features], views of equal token count.
struct Activations {
  std::array<TensorView, kSlots> slot{};
  // What the last KeyChoice of the pass chose, [tokens, top_k] i32, empty where every query sees all its keys. It
  // outlives the block: blocks behind may look at the same keys.
  Tensor* choice = nullptr;
  TensorView& operator[](Slot s) { return slot[static_cast<size_t>(s)]; }
  const TensorView& operator[](Slot s) const { return slot[static_cast<size_t>(s)]; }
};

// How the tokens lie: `seqs` sequences of equal length, row-major; positions on the device.
struct TokenLayout {
  int64_t seqs = 1;
  ConstTensorView positions{};      // i32 [tokens]
  const KvCache* cache = nullptr;   // null: plain causal attention inside each sequence
  const KiviCache* kivi = nullptr;  // in place of cache; null: it is no cache of that form
  // The cache holds keys, and values, that kernels/model/hadamard.h turned.
  bool turned_keys = false, turned_values = false;
  ConstTensorView ids{};  // i32 [tokens] on the device, for blocks that read_tokens(); else nobody asks
  // Null: recurrent ops begin every sequence at zero and keep nothing.
  const RecurrentState* state = nullptr;
  // What latent attention keeps; null: plain attention inside each sequence. from_zero: the tokens at hand are the
  // first of their sequences, all that there is to see.
  const LatentStorage* latents = nullptr;
  bool from_zero = false;
  RankSums* ranks = nullptr;  // null: there is one
  // Sequences of different lengths over pages, in place of seqs, cache, state and latents; null: as above.
  const RaggedLayout* ragged = nullptr;
};

// Owns the slot tensors for up to `tokens` tokens (x excluded: the caller owns the states), wide enough for
// every kind of block of the model.
class SlotBuffers {
 public:
  SlotBuffers(Exec&, const ModelSpec&, int64_t tokens, DType dtype);
  int64_t tokens() const { return tokens_; }
  // Views of x.rows() <= tokens() tokens, in the widths of a kind of block (ModelSpec::kind of a layer).
  // Their `choice` is that of these buffers, so that a pass through one block after another hands it on.
  Activations bind(TensorView x, int kind = 0) const;

 private:
  std::unique_ptr<Tensor> choice_ = std::make_unique<Tensor>();
  int64_t tokens_;
  std::array<Tensor, kSlots> buffers_{};               // [tokens * the largest width]
  std::vector<std::array<int64_t, kSlots>> widths_{};  // by kind; 0 = not used
};

// The rope tables of a model, uploaded once: op -> device tensor of inv_freq. LongRoPE has two; the run decides once,
// by `longest`, the positions that its longest sequence can have.
class RopeTables {
 public:
  RopeTables(Exec&, const ModelSpec&, int64_t longest);
  void fit(int64_t longest) { longest_ = longest; }  // for another run
  ConstTensorView inv_freq(const Rope& op) const;
  ConstTensorView inv_freq(const RopeParams&) const;

 private:
  int64_t longest_;
  std::map<std::vector<float>, Tensor> tables_;
};

// y = x after a norm of the kind; y may be x.
void norm_rows(Exec&, ConstTensorView x, ConstTensorView weight, NormKind, float eps, TensorView y);

// The kernels' arguments of an op.
AttentionArgs args_of(const Attention&);
ActKind act_kind(Activation);

void run_op(Exec&, const BlockOp&, const BlockWeights&, const RopeTables&, const TokenLayout&, Activations&);
// `clock` may be null.
void run_block(Exec&, const std::vector<BlockOp>&, const BlockWeights&, const RopeTables&, const TokenLayout&,
               Activations&, PhaseClock* clock = nullptr);

}  // namespace fewbit
