#pragma once
// A transform rewrites a block so that its function stays and its linears become easier to round. A recipe's chain is
// any number of transforms and one method: "awq+gptq".
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/calib/input_stats.h"
#include "src/quant/loop/block_f32.h"
#include "src/quant/method.h"

namespace fewbit {

// How a linear of the block will be quantized.
struct LinearTarget {
  QuantSpec spec{};
  Effort effort = Effort::standard;
  const Method* method = nullptr;
};

// How much of an input's range moves into the weights: s = max|x|^alpha / max|w|^(1 - alpha).
struct Migration {
  std::optional<float> alpha{};  // nothing: searched for every absorber
  bool operator==(const Migration&) const = default;
};

struct TransformJob {
  const std::vector<BlockOp>* ops = nullptr;
  // Only absorbers whose linears are all quantized: what the user keeps, stays as it is.
  std::vector<Absorber> absorbers{};
  std::map<std::string, ActivationStats> stats{};  // of the scaled activation, by the absorber's name
  std::map<std::string, LinearTarget> targets{};   // by name relative to the block
  Migration migration{};                           // for transforms that take it
};

struct Transform {
  std::string_view name, summary;
  Needs needs;
  bool takes_alpha;  // the recipe's alpha= is for it
  // Sets what a recipe may leave open, given the method that ends the chain.
  void (*fill_in)(const Method&, QuantSpec&);
  void (*apply)(Exec&, const TransformJob&, BlockF32&);
};

const std::vector<const Transform*>& transforms();
const Transform* find_transform(std::string_view name);  // null where there is none

// The absorbers of a block that a transform may use: every linear that would be rewritten is in `targets`.
std::vector<Absorber> usable_absorbers(const std::vector<BlockOp>& ops,
                                       const std::map<std::string, LinearTarget>& targets);

#define FEWBIT_TRANSFORM(id) extern const Transform transform_##id;
#include "src/quant/transforms.def"
#undef FEWBIT_TRANSFORM

}  // namespace fewbit
