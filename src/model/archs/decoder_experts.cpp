// Mixtures of experts in the place of a decoder's MLP.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

std::vector<BlockOp>::iterator moe_in(std::vector<BlockOp>& block) {
  return std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
}

}  // namespace

std::vector<BlockOp> moe_block(const ConfigView& c, const std::vector<BlockOp>& dense, const MoeNames& n,
                               int64_t intermediate, bool renormalise) {
  std::string count = "num_local_experts";
  for (const char* key : {"num_experts", "n_routed_experts", "moe_num_experts"})
    if (c.has(key)) count = key;
  const int64_t experts = size_key(c, count);
  std::string chosen = "num_experts_per_tok";
  for (const char* key : {"moe_k", "num_experts_per_token"})
    if (c.has(key)) chosen = key;
  const int64_t top_k = size_key(c, chosen);
  if (experts > 100000 || top_k > experts)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected at most the number of experts (at most 100000), found {} of {}", c.where(),
                     chosen, top_k, experts));
  // The MLP is the last gate, its activation and its down projection.
  const auto act =
      std::find_if(dense.begin(), dense.end(), [](const BlockOp& op) { return std::holds_alternative<GatedAct>(op); });
  FEWBIT_ASSERT(act != dense.end());
  const Linears& wide = std::get<Linears>(act[-1]);
  const int64_t hidden = wide.items[0].in_features;
  std::vector<BlockOp> block(dense.begin(), act - 1);
  block.push_back(Moe{.in = wide.in,
                      .out = std::get<Linears>(act[1]).items[0].out,
                      .router = n.router,
                      .hidden = hidden,
                      .experts = static_cast<int>(experts),
                      .top_k = static_cast<int>(top_k),
                      .renormalise = renormalise,
                      .expert_name = n.experts,
                      .gate = {n.gate, Slot::gate, intermediate, hidden},
                      .up = {n.up, Slot::up, intermediate, hidden},
                      .down = {n.down, Slot::h, hidden, intermediate},
                      .act = std::get<GatedAct>(*act).act});
  block.insert(block.end(), act + 2, dense.end());
  return block;
}

Moe& experts_of(std::vector<BlockOp>& block) {
  const auto at = moe_in(block);
  FEWBIT_ASSERT(at != block.end());
  return std::get<Moe>(*at);
}

void correct(Moe& moe, const std::string& name, const Shape& shape) {
  moe.correction = name;
  moe.correction_shape = shape;
}

void add_shared_expert(std::vector<BlockOp>& block, const std::string& prefix, int64_t width, const std::string& gate) {
  const auto at = moe_in(block);
  FEWBIT_ASSERT(at != block.end());
  const Moe moe = std::get<Moe>(*at);
  std::vector<BlockOp> shared = gated_mlp(prefix, moe.hidden, width, Slot::shared);
  if (!gate.empty()) {
    shared.push_back(Project{moe.in, Slot::share, gate, 1, moe.hidden});
    shared.push_back(SigmoidGate{Slot::share, Slot::shared, Slot::shared});
  }
  shared.push_back(moe);  // last, for it may write where all of them read
  shared.push_back(AddTo{Slot::shared, moe.out});
  block.insert(block.erase(at), shared.begin(), shared.end());
}

void group_experts(const ConfigView& c, Moe& moe, const std::string& key, int64_t groups, int64_t best) {
  moe.groups = static_cast<int>(size_key(c, key, groups));
  moe.best_groups = static_cast<int>(size_key(c, "topk_group", best));
  if (moe.experts % moe.groups != 0 || moe.best_groups > moe.groups ||
      moe.top_k > moe.experts / moe.groups * moe.best_groups ||
      (moe.groups > 1 && moe.experts / moe.groups < moe.judges))
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}, topk_group: {} and {} do not fit {} experts, {} of them for a token", c.where(), key,
                     moe.groups, moe.best_groups, moe.experts, moe.top_k));
}

}  // namespace fewbit
