#pragma once
// A linear of a block, and the mixture of experts: many small MLPs, of which a token visits a few.
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/tensor.h"
#include "src/model/slots.h"

namespace fewbit {

enum class Activation : uint8_t { silu, gelu_tanh, relu, none };
struct LinearDef {
  std::string name;
  Slot out;
  int64_t out_features, in_features;
  bool bias = false;
};

// Mixture of experts: every token goes to the `top_k` experts that the router likes best; out becomes the sum
// of down(act(gate) * up) of those, weighted by the router's scores (kernels/model/route.h). out may be in.
enum class RouterScore : uint8_t { softmax, sigmoid, root_softplus };
struct Moe {
  Slot in, out;
  std::string router;  // "mlp.gate", always dense [experts, hidden]; empty: routed() has the weights (TokenRoute)
  int64_t hidden;
  int experts, top_k;
  bool renormalise;          // the weights of the chosen experts sum to 1
  std::string expert_name;   // "mlp.experts."; the number of the expert follows
  LinearDef gate, up, down;  // of one expert: names behind "mlp.experts.7.", slots as in a dense block
  Activation act;
  // Where the checkpoint stacks the experts of a layer: gate over up [experts, 2 width, hidden], and
  // down [experts, hidden, width]. Empty: never.
  std::string stacked_gate_up{}, stacked_down{};
  // How stacks lie that are no rows of outputs: [experts, inputs, outputs], gate beside up or both by turns; the latter
  // have biases behind "_bias". `turned` ones may come as rows all the same, and are told by their shape.
  enum class Stacks : uint8_t { rows, turned, turned_by_turns } stacks = Stacks::rows;
  bool weigh_inputs = false;  // the weight of an expert multiplies what it reads, not what it answers (Llama 4)
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
  bool plain_swiglu = false;   // clamped, but without the slope and the shift of gpt-oss
  std::string expert_scale{};  // of the weights, [experts]
  int own_begin = 0, own_end = 0;  // of one of several ranks: its experts, what they make is summed; 0, 0: all
  bool all_own() const { return own_end == 0; }
  int last_own() const { return all_own() ? experts : own_end; }  // one behind it
  Slot routed() const { return router_in == Slot::count ? in : router_in; }

  bool gated() const { return !gate.name.empty(); }  // else act(up) * up; `gate` has the sizes of `up` then
  // What multiplies an expert's input, and all of its linears.
  std::vector<LinearDef> wide_of(int expert) const {
    if (!gated()) return {of_expert(up, expert)};
    return {of_expert(gate, expert), of_expert(up, expert)};
  }
  std::vector<LinearDef> linears_of_expert(int expert) const {
    std::vector<LinearDef> all = wide_of(expert);
    all.push_back(of_expert(down, expert));
    return all;
  }

  // A linear of an expert with its name in the block: "mlp.experts.7.gate_proj".
  LinearDef of_expert(const LinearDef& def, int expert) const {
    LinearDef named = def;
    named.name = expert_name + std::to_string(expert) + "." + def.name;
    return named;
  }
};

}  // namespace fewbit
