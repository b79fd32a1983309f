#pragma once
// The small ops that a block of a model is made of, over named activation slots. BlockOp is one of them.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "src/core/tensor.h"
#include "src/model/mixer_ops.h"
#include "src/model/mixture.h"
#include "src/model/rope_params.h"
#include "src/model/slots.h"

namespace fewbit {

// x * w or x * (1 + w) (Gemma) of x over its root mean square; x * w of (x - mean) over the standard deviation (Cohere)
enum class NormKind : uint8_t { rms, rms_plus_one, layer };
constexpr float weight_offset(NormKind kind) { return kind == NormKind::rms_plus_one ? 1.f : 0.f; }

// Names of weights are relative to the block prefix ("model.layers.7."); ".weight" / ".bias" are appended.
struct Norm {
  Slot in, out;
  NormKind kind;
  std::string name;
  int64_t features;
  float eps;
  bool bare = false;  // the name is that of the tensor, without ".weight"
};
// Linears that share one input: one Gram matrix serves them all.
struct Linears {
  Slot in;
  std::vector<LinearDef> items;
  bool summed = false;  // over the ranks, each of which has a part of `in` (src/model/parallel/tensor_parallel.h)
};
// A small linear that no recipe ever touches, with the routers: gates and rates of a few features, whose rounding would
// move all that they multiply.
struct Project {
  Slot in, out;
  std::string name;
  int64_t out_features, in_features;
  int groups = 1;  // each makes its part of the outputs from its own in_features inputs
};
// The outputs of a fused linear, side by side in `in`, each to a slot of its own or to the columns of one from `at` on.
// With groups (heads) the parts of every group lie side by side, and an output has its part of all groups.
struct SplitPart {
  Slot out;
  int64_t features;
  int64_t at = 0;
};
struct Split {
  Slot in;
  std::vector<SplitPart> parts;
  int64_t groups = 1;
};
struct HeadNorm {  // in place, per head; without a weight where the name is empty
  Slot slot;
  NormKind kind;
  std::string name;
  int64_t head_dim;
  float eps;
};
struct Rope {  // in place
  std::vector<Slot> slots;
  int64_t head_dim;
  RopeParams params;
  bool neighbours = false;  // features 2 i and 2 i + 1 turn together, not i and i + rot / 2
};
struct Attention {
  Slot q, k, v, out;
  int heads, kv_heads;
  int64_t head_dim;
  float scale;
  int64_t window = 0;   // 0 = full
  float softcap = 0;    // 0 = none
  std::string sinks{};  // [heads]: a logit beside the scores of a head, without a value
  int64_t chunk = 0;    // > 0: a query sees only keys of its own chunk of so many positions
  // The layer whose keys and values it reads, which stand in k and v where there is no cache; -1: its own.
  int64_t keys_of_layer = -1;
  bool own_keys() const { return keys_of_layer < 0; }
};
// In place: row t times 1 + factor * ln(1 + floor((position + shift) / every)) (Llama 4, 2025): queries far behind the
// positions that a model was trained on keep their sharpness.
struct PositionScale {
  Slot slot;
  float factor;
  int64_t every, shift = 0;
};
// out = act(gate) * up. With gate and up the same slot: relu gives relu(x)^2.
struct GatedAct {
  Slot gate, up, out;
  Activation act;
  float limit =
      0;  // > 0: gate up to it, up between it and its negative, and silu (SwigluClamp without slope and shift)
};
struct SigmoidGate {  // out = in * sigmoid(gate); a gate for every feature, or one for all. out may be in
  Slot gate, in, out;
};
struct Scale {  // slot *= the tensor `name`: its one value, or one for every feature
  Slot slot;
  std::string name;
  int64_t features = 1;
};
struct AddTo {  // out += factor * in
  Slot in, out;
  float factor = 1;
};
// What a token alone gives to a layer (Gemma 3n, 2025), [layers, features] of every token:
//   (rms(projection of the embedding / sqrt(hidden)) * norm + sqrt(features) * row of the table) / sqrt(2)
// The three tensors are the whole model's; a layer has its `features` rows of the projection and columns of the table.
struct TokenInput {
  Slot out;
  std::string table, projection, norm;  // [vocab, layers * features], [layers * features, hidden], [features]
  int64_t layers, features;
  float eps;
};
// Slots that blocks behind this one read: they outlive it. Last of its block.
struct Keep {
  std::vector<Slot> slots;
  std::vector<int64_t> features;  // of each
};
using BlockOp =
    std::variant<Norm, Linears, Split, HeadNorm, Rope, Attention, GatedAct, AddTo, Moe, Project, SigmoidGate, Scale,
                 ShortConv, DeltaRule, BiasedNorm, KeyChoice, LatentAttention, PositionScale, StateScan, TokenInput,
                 Keep, CompressKeys, SharedKeyAttention, ReadStreams, WriteStreams, TokenRoute>;

}  // namespace fewbit
