#pragma once
// The small ops that a block of a model is made of, over named activation slots. BlockOp is one of them.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace fewbit {

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

}  // namespace fewbit
