#include "src/quant/plan/method_bytes.h"

#include <algorithm>
#include <numeric>

#include "src/core/parallel.h"
#include "src/quant/loop/background.h"
#include "src/quant/methods/coupled_rows.h"
#include "src/quant/methods/gptq_bytes.h"
#include "src/quant/plan/plan_ends.h"

namespace fewbit {

namespace {

int64_t bytes_of_method(Device::Kind kind, const PlannedLinear& p, bool sibling) {
  const int64_t in = p.linear.in, out = p.linear.out, weights = out * in;
  if (p.lossless) return weights * 6;  // codes in two places, and the values that take their place
  // On a GPU the weight, what stands for it, both in f32, and codes.
  const int64_t left = p.recipe.two_of_four ? 4 * weights : 0;  // of the weight, pruned
  if (!has(p.recipe.needs(), Needs::gram)) return weights * (kind == Device::cuda && !p.blocks ? 9 : 14) + left;
  const bool shifted = has(p.recipe.needs(), Needs::cross);
  const bool gptq = p.recipe.method == &method_gptq;
  const int64_t strips = gram_loss_bytes(kind, out, in), factor = gptq ? 4 * in * in : 0;
  const int64_t losses = factor + 14 * weights + strips;
  // The shift of the target is behind it when codes are looked for.
  if (!gptq) return shifted ? std::max(losses, shift_bytes(kind, out, in) + weights * 8) : losses;
  return std::max(losses, 4 * weights + gptq_bytes(kind, {.out = out,
                                                          .in = in,
                                                          .group = p.recipe.spec.group_size(in),
                                                          .effort = p.recipe.effort,
                                                          .act_order = p.recipe.act_order,
                                                          .shifted = shifted,
                                                          .sibling = sibling}));
}

}  // namespace

int64_t kept_features(const ModelSpec& spec) {
  int64_t most = 0;
  for (const std::vector<BlockOp>& ops : spec.kinds)
    if (const Keep* kept = std::get_if<Keep>(&ops.back()))
      most = std::max(most, std::accumulate(kept->features.begin(), kept->features.end(), int64_t{0}));
  return most;
}

int64_t widest_input(const ModelSpec& spec) {
  int64_t most = spec.hidden;
  for (const std::vector<BlockOp>& ops : spec.kinds)
    for (const BlockOp& op : ops)
      if (const auto* l = std::get_if<Linears>(&op)) most = std::max(most, l->items.front().in_features);
  return most;
}

int64_t curvatures_bytes(const std::vector<BlockOp>& ops, size_t from) {
  int64_t all = 0;
  for (size_t i = from; i < ops.size(); ++i)
    for (const LinearDef& l : linears_of(ops[i])) all += OutputCurvature::bytes(l.out_features);
  return all;
}

int64_t token_table_features(const std::vector<BlockOp>& ops) {
  for (const BlockOp& op : ops)
    if (const TokenInput* t = std::get_if<TokenInput>(&op)) return t->features;
  return 0;
}

int64_t program_bytes(Device::Kind kind) {
  constexpr int64_t kProgram = int64_t{80} << 20, kThread = int64_t{4} << 20;
  // What the driver and the libraries of a GPU take of host memory, once there is a CUDA Exec.
  constexpr int64_t kHostLibraries = int64_t{688} << 20;
  return kProgram + (kind == Device::cuda ? kHostLibraries : 0) + thread_count() * kThread;
}

int64_t method_bytes(Device::Kind kind, const PlannedLinear& p, bool sibling) {
  const int64_t in = p.linear.in, sums = has(p.recipe.needs(), Needs::gram) ? 2 * in * in : 0;
  const int64_t turned = p.recipe.spec.turn ? 4 * (p.linear.out * in + sums) : 0;  // beside those of the input itself
  const int64_t coupled =
      p.recipe.weighs_outputs ? coupled_bytes(p.linear.out, in, p.recipe.effort == Effort::best) : 0;
  return bytes_of_method(kind, p, sibling) + turned + coupled;
}

int64_t largest_alone(Device::Kind kind, const QuantPlan& plan, int64_t layer) {
  int64_t most = 0;
  for (const PlannedLinear& p : plan.linears)
    if (p.linear.layer == layer && !p.keep) most = std::max(most, method_bytes(kind, p));
  return most;
}

int64_t host_bytes(const Checkpoint& c, const QuantPlan& plan, int64_t layer, bool waves) {
  int64_t packed = 0, largest = 0, codes = 0, most = 0;
  for (const PlannedLinear& p : plan.linears) {
    const bool before = p.linear.layer == layer - 1 && !waves;  // which waits for it
    if (p.keep || (p.linear.layer != layer && !before) || is_end(p.linear)) continue;
    packed += p.out_bytes;
    if (p.linear.layer != layer) continue;
    const int64_t weights = p.linear.out * p.linear.in;
    codes += weights;
    most = std::max(most, weights);
    const int64_t unpacked = c.packed(p.linear.name) ? weights * 2 : 0;  // codes as they are read
    largest = std::max(largest, weights * 2 + p.out_bytes + p.source_bytes + unpacked);
  }
  return packed + largest + std::min(codes - most, std::max(kWaitingBytes, most));
}

}  // namespace fewbit
