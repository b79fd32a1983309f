#pragma once
// OutShards writes the safetensors files of OUT while blocks are still being quantized: tensors in the model's order, a
// file as soon as the next tensor would not fit it. The order: what stands in front of the blocks and beside them, the
// blocks, then the final norm, the head and packed ends. A tensor comes from its sealed block where that has it (packed
// linears, norms that a transform rewrote), else from the model.
//
// The plan says what every file will hold, so a tensor is put in its place as soon as it is known: a block's when the
// journal seals it, which then needs no file for it, the dense head from the start. What is left when a file is full is
// its digest, its sync and its record. Once a file turns out otherwise than foreseen, it is begun anew when it is full,
// and blocks are sealed in files of their own from then on.
//
// The SHA-256 of a file can only go in the order of its tensors, which is that of types and names: block 10 stands
// behind block 1, and an embedding behind all codes. So that little is left of it when the last block comes, a file
// also ends in front of block 10, 100 …, and in front of a head that is large; and where the scales and norms of all
// blocks stand in front of the codes, which are of a smaller type, before much waits for the last of them, and in front
// of the last block. One thread takes the digest of one file no faster than 0.7 to 2 GB/s, which is less than a disk
// takes or blocks come: the rest of a full file is taken beside the next one, and what is the model's own comes into
// its files beside the blocks.
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/shards.h"
#include "src/model/checkpoint.h"
#include "src/model/stacked_experts.h"
#include "src/quant/journal/journal.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

// What an interrupted run left beside the shards of the journal, and beside what sealed blocks lie in, goes.
void remove_all_but_shards(const Journal&);

class OutShards {
 public:
  // Goes on behind the shards that the journal has. Until it goes it has the journal's blocks, which may be sealed in
  // another thread than that of the calls below.
  OutShards(const Checkpoint&, const QuantPlan&, Journal&, int64_t shard_bytes);
  ~OutShards() { journal_.place_blocks_by({}); }
  OutShards(const OutShards&) = delete;
  OutShards& operator=(const OutShards&) = delete;

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
  using Shard = std::shared_ptr<OpenShard>;           // null: there is none for it
  static constexpr int64_t kModel = -1;

  int64_t unit_of(const std::string& tensor) const;
  static bool codes_come_last(const QuantPlan&);
  bool ends_before(int64_t unit, int64_t bytes) const;
  void foresee(const QuantPlan&);
  void go_on();
  std::optional<SealedRanges> place(int64_t layer, const std::vector<NamedTensor>&);
  int64_t number() const { return journal_.shards() + static_cast<int64_t>(finishing_.size()); }
  void begin();
  bool beside(int64_t shard, const std::string& tensor) const;
  std::future<void> let_go_beside(int64_t shard, const std::vector<TensorInfo>&, std::set<std::string>& names);
  void take(int64_t unit);
  std::vector<TensorInfo> tensors_of(int64_t block, Blocks&);
  void catch_up();
  void stack(int64_t layer, std::map<std::string, Waiting>& tensors) const;
  Shard foreseen(int64_t shard, const TensorInfo&);
  Shard begun_for(int64_t shard, const std::vector<TensorInfo>&);
  void put(OpenShard&, const Waiting&, Blocks&) const;
  void write(int64_t covered);
  void seal_finished(size_t most);

  const Checkpoint& ckpt_;
  Journal& journal_;
  const int64_t shard_bytes_;
  std::vector<std::vector<const TensorInfo*>> of_model_;  // [unit]: tensors that no packed linear takes the place of
  const bool stacked_;                                    // experts go into stacks
  const bool codes_last_;                                 // of a file, behind what is small of every block in it
  std::vector<std::vector<TensorInfo>> foreseen_{};       // [shard], from the first; empty: nothing is known before
  struct Foreseen {
    int64_t shard;
    const TensorInfo* tensor;
  };
  std::unordered_map<std::string, Foreseen> place_of_{};  // the same by name
  std::mutex guard_{};                                    // of what follows up to `written_`, for moments
  std::map<int64_t, Shard> open_{};                       // by number
  std::map<int64_t, std::vector<TensorInfo>> placed_{};   // [block] that lies in them
  std::set<int64_t> with_blocks_{};                       // shards that blocks were put into as they were sealed
  int64_t full_ = 0;                                      // so many shards have all that they will hold
  bool otherwise_ = false;                                // than foreseen: no more blocks are
  std::set<std::string> written_{};
  int64_t next_ = 0;  // unit
  std::vector<Waiting> waiting_{};
  int64_t waiting_bytes_ = 0;
  struct Beside {  // what a thread of its own puts into a shard
    Shard shard;
    std::set<std::string> names{};
    std::future<void> done{};
  };
  struct Finishing {
    int64_t covered;
    std::future<WrittenFile> file;
  };
  // The last members: their work ends before what it works on goes.
  std::map<int64_t, Beside> beside_{};  // by number
  std::deque<Finishing> finishing_{};   // from journal_.shards()
};

}  // namespace fewbit
