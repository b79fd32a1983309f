#pragma once
// The small ops that a block of a model is made of, over named activation slots. BlockOp is one of them.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "src/core/tensor.h"
#include "src/model/rope_params.h"
#include "src/model/slots.h"

namespace fewbit {

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
  bool bare = false;  // the name is that of the tensor, without ".weight"
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
  bool summed = false;  // over the ranks, each of which has a part of `in` (src/model/parallel/tensor_parallel.h)
};
// A small linear that no recipe ever touches, with the routers: gates and rates of a few features, whose rounding would
// move all that they multiply.
struct Project {
  Slot in, out;
  std::string name;
  int64_t out_features, in_features;
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
};
struct GatedAct {
  Slot gate, up, out;
  Activation act;
};
struct SigmoidGate {  // out = in * sigmoid(gate); a gate for every feature, or one for all. out may be in
  Slot gate, in, out;
};
struct Scale {  // slot *= the one value of the tensor `name`
  Slot slot;
  std::string name;
};
struct AddTo {  // out += in
  Slot in, out;
};
// Causal convolution of a few taps over every channel, then SiLU: `name` is [channels, 1, taps].
struct ShortConv {
  Slot in, out;
  std::string name;
  int64_t channels, taps;
};
// Gated delta rule (kernels/recurrent/delta_rule.h) over q, k, v, which lie side by side where they are one slot.
struct DeltaRule {
  Slot q, k, v, beta, decay, out;
  std::string a_log, dt_bias;
  int k_heads, v_heads;
  int64_t k_dim, v_dim;
  bool each_channel = false;  // a decay for every key channel: `decay` and dt_bias are [v_heads * k_dim], not [v_heads]
  Shape a_log_shape{};        // as it is stored, v_heads values; of rank 0: [v_heads]
  int64_t rates() const { return each_channel ? v_heads * k_dim : v_heads; }
  // Where k and v begin in their slots.
  int64_t k_at() const { return k == q ? k_heads * k_dim : 0; }
  int64_t v_at() const { return v == q ? 2 * k_heads * k_dim : 0; }
};
// Layer norm with a bias, in place.
struct BiasedNorm {
  Slot slot;
  std::string name;
  int64_t features;
  float eps;
};
// The keys that latent attention looks at where there are more than `top_k` (kernels/attention/key_choice.h): `q` has
// queries of `heads` heads, `k` one key, `weights` a weight for every head. The choice is no slot: it stands until the
// next KeyChoice of the pass, in whatever block (Activations::choice, src/run/block.h).
struct KeyChoice {
  Slot q, k, weights;
  int heads;
  int64_t head_dim, top_k;
};
// Attention whose keys and values are made from a latent of `rank` features a token (DeepSeek-V2, 2024, section 2.1):
// the key of a head is its part of `kv` and k_rope, which all heads share; the rest of its part of `kv` is the value.
// `kv` is what the linear `kv_b` makes of `latent`. Over a cache, which keeps latent and k_rope, the op may take that
// linear's weights into the queries and the outputs instead (kernels/attention/latent_attention.h); so kv_b is loaded
// dense, with the values that its codes stand for.
struct LatentAttention {
  Slot q_nope, q_rope, kv, k_rope, latent, out;
  std::string kv_b;
  int heads;
  int64_t nope, rope, value, rank;  // features: of a head's key that do not turn, that do; of its value; of the latent
  float scale;
  bool chosen = false;  // it sees the keys of the last KeyChoice alone
};
// Mixture of experts: every token goes to the `top_k` experts that the router likes best; out becomes the sum
// of down(act(gate) * up) of those, weighted by the router's scores (kernels/model/route.h). out may be in.
enum class RouterScore : uint8_t { softmax, sigmoid };
struct Moe {
  Slot in, out;
  std::string router;  // "mlp.gate", always dense [experts, hidden]
  int64_t hidden;
  int experts, top_k;
  bool renormalise;          // the weights of the chosen experts sum to 1
  std::string expert_name;   // "mlp.experts."; the number of the expert follows
  LinearDef gate, up, down;  // of one expert: names behind "mlp.experts.7.", slots as in a dense block
  Activation act;
  // Where the checkpoint stacks the experts of a layer: gate over up [experts, 2 width, hidden], and
  // down [experts, hidden, width]. Empty: never.
  std::string stacked_gate_up{}, stacked_down{};
  bool turned_stacks = false;  // [experts, inputs, outputs], gate and up by turns; their biases behind "_bias"
  RouterScore score = RouterScore::softmax;
  float scaling = 1;                // of the weights
  int groups = 1, best_groups = 1;  // of experts; only those of the best groups can be chosen
  int judges = 2;                   // of a group: the sum of its so many best scores
  std::string correction{};         // added to the scores for the choice alone, [experts] or what the shape says
  Shape correction_shape{};
  Slot router_in = Slot::count;  // where the router reads something else than `in`
  float logit_scale = 1;
  bool router_bias = false;
  float swiglu_limit = 0;      // > 0: clamped_swiglu() of kernels/model/gated_act.h takes the place of act(gate) * up
  std::string expert_scale{};  // of the weights, [experts]
  int own_begin = 0, own_end = 0;  // of one of several ranks: its experts, what they make is summed; 0, 0: all
  bool all_own() const { return own_end == 0; }
  int last_own() const { return all_own() ? experts : own_end; }  // one behind it
  Slot routed() const { return router_in == Slot::count ? in : router_in; }

  // A linear of an expert with its name in the block: "mlp.experts.7.gate_proj".
  LinearDef of_expert(const LinearDef& def, int expert) const {
    LinearDef named = def;
    named.name = expert_name + std::to_string(expert) + "." + def.name;
    return named;
  }
};

using BlockOp = std::variant<Norm, Linears, Split, HeadNorm, Rope, Attention, GatedAct, AddTo, Moe, Project,
                             SigmoidGate, Scale, ShortConv, DeltaRule, BiasedNorm, KeyChoice, LatentAttention>;

}  // namespace fewbit
