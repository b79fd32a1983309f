#pragma once
// OutShards writes the safetensors files of OUT while blocks are still being quantized: tensors in the model's order, a
// file as soon as the next tensor would not fit it. The order: what stands in front of the blocks and beside them, the
// blocks, then the final norm, the head and packed ends. A tensor comes from its sealed block where that has it (packed
// linears, norms that a transform rewrote), else from the model.
//
// The plan says what every file will hold, so a tensor is put in its place as soon as it is known, the dense head from
// the start; what is left when a file is full is its digest, its sync and its record. A file that turns out otherwise
// is begun anew when it is full.
//
// The SHA-256 of a file can only go in the order of its tensors, which is that of types and names: block 10 stands
// behind block 1, and an embedding behind all codes. So that little is left of it when the last block comes, a file
// also ends in front of block 10, 100 …, and in front of a head that is large.
#include <future>
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

// What an interrupted run left beside the shards of the journal goes.
void remove_all_but_shards(const Journal&);

class OutShards {
 public:
  // Goes on behind the shards that the journal has.
  OutShards(const Checkpoint&, const QuantPlan&, Journal&, int64_t shard_bytes);

  // Takes blocks up to the first `sealed`, and writes every shard that they fill. With 0, what the model alone decides.
  void advance(int64_t sealed);
  // All blocks and ends are sealed: writes the last shard, gives all their names and writes the index.
  void finish();

 private:
  struct Waiting {
    TensorInfo info;
    int64_t block;                       // whose sealed file has it; kModel for the model's own
    std::optional<ExpertStack> stack{};  // made of the block's tensors, and of the model's where it has none
  };
  using Blocks = std::map<int64_t, CheckpointIndex>;  // that are open
  static constexpr int64_t kModel = -1;

  int64_t unit_of(const std::string& tensor) const;
  bool ends_before(int64_t unit, int64_t bytes) const;
  void foresee(const QuantPlan&);
  void begin();
  void fill_own(int64_t shard, std::vector<const TensorInfo*> own);
  void wait_for_own();
  void take(int64_t unit);
  void stack(int64_t layer, std::map<std::string, Waiting>& tensors) const;
  OpenShard* foreseen(int64_t shard, const TensorInfo&);
  void put(OpenShard&, const Waiting&, Blocks&) const;
  void write(int64_t covered);

  const Checkpoint& ckpt_;
  Journal& journal_;
  const int64_t shard_bytes_;
  std::vector<std::vector<const TensorInfo*>> of_model_;  // [unit]: tensors that no packed linear takes the place of
  const bool stacked_;                                    // experts go into stacks
  std::vector<std::vector<TensorInfo>> foreseen_{};       // [shard], from the first; empty: nothing is known before
  std::map<int64_t, OpenShard> open_{};                   // by number
  std::set<std::string> written_{};
  int64_t next_ = 0;  // unit
  std::vector<Waiting> waiting_{};
  int64_t waiting_bytes_ = 0;
  int64_t own_shard_ = -1;   // that a thread of its own fills
  std::future<void> own_{};  // the last member: its work ends before what it works on goes
};

}  // namespace fewbit
