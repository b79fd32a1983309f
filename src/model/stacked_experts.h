#pragma once
// Checkpoints that stack the experts of a layer in one tensor, read as those that have a tensor for every expert, and
// the way back.
#include <functional>
#include <string>
#include <vector>

#include "src/model/model_spec.h"
#include "src/model/weight_store.h"

namespace fewbit {

// Where the store has the stacks that a Moe of the spec names, and not the experts' own tensors: the same bytes under
// the experts' names, as views into the files or gathered when they are asked for. Error{checkpoint} where a stack has
// another shape than the config says.
WeightStore with_single_experts(const ModelSpec&, WeightStore);

// A stack of gpt-oss or Llama 4: of every expert the outputs of its linears by turns (gate, up, gate, up …; down alone)
// or, of Llama 4, those of one behind those of the other.
struct ExpertStack {
  std::string name{};                // "model.layers.0.mlp.experts.gate_up_proj_blocks"
  std::vector<std::string> parts{};  // tensors of single linears: expert by expert, and of one its linears
  Shape shape{};                     // [experts, outputs …], or, `turned`, [experts, inputs, outputs]
  Shape part{};                      // of one of the parts, [outputs, …] or [outputs]
  int64_t linears = 1;               // that lie together
  bool by_turns = true;
  bool turned = false;
};

// The stacks that the experts of a layer may lie in, by a checkpoint's kind: of weights (turned), of MXFP4's blocks and
// of its scales, and of biases. None where the family has no such stacks.
std::vector<ExpertStack> turned_stacks_of(const ModelSpec&, int64_t layer);

// Why linears that are packed so would not go into such stacks, which hold all experts of a layer and nothing besides;
// "" = they would.
std::string refuses_stacks(const ModelSpec&, const std::function<bool(const std::string& linear)>& packed);

// The stack of its parts.
Tensor stacked(const ExpertStack&, const std::function<ConstTensorView(const std::string& part)>& get);

}  // namespace fewbit
