#pragma once
// OutShards writes the safetensors files of OUT while blocks are still being quantized: tensors in the model's order, a
// file as soon as the next tensor would not fit it. The order: what stands in front of the blocks and beside them, the
// blocks, then the final norm, the head and packed ends. A tensor comes from its sealed block where that has it (packed
// linears, norms that a transform rewrote), else from the model.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/shards.h"
#include "src/model/checkpoint.h"
#include "src/model/stacked_experts.h"
#include "src/quant/journal/journal.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

class OutShards {
 public:
  // Goes on behind the shards that the journal has.
  OutShards(const Checkpoint&, const QuantPlan&, Journal&, int64_t shard_bytes);

  // Takes the blocks that were sealed since, and writes every shard that they fill.
  void advance();
  // All blocks and ends are sealed: writes the last shard, gives all their names and writes the index.
  void finish();

 private:
  struct Waiting {
    TensorInfo info;
    int64_t block;                       // whose sealed file has it; kModel for the model's own
    std::optional<ExpertStack> stack{};  // made of the block's tensors, and of the model's where it has none
  };
  static constexpr int64_t kModel = -1;

  int64_t unit_of(const std::string& tensor) const;
  void take(int64_t unit);
  void stack(int64_t layer, std::map<std::string, Waiting>& tensors) const;
  void write(int64_t covered);

  const Checkpoint& ckpt_;
  Journal& journal_;
  const int64_t shard_bytes_;
  std::vector<std::vector<const TensorInfo*>> of_model_;  // [unit]: tensors that no packed linear takes the place of
  const bool stacked_;                                    // experts go into stacks
  std::set<std::string> written_{};
  int64_t next_ = 0;  // unit
  std::vector<Waiting> waiting_{};
  int64_t waiting_bytes_ = 0;
};

}  // namespace fewbit
