#pragma once
// What the ranks that share a model (src/model/parallel/tensor_parallel.h) say to each other, and how long that takes.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/decode/decode_peer.h"
#include "kernels/exec/peer_memory.h"
#include "src/model/parallel/tensor_parallel.h"
#include "src/ranks/ranks.h"
#include "src/run/linear.h"

namespace fewbit {

// Every rank makes the same calls in the same order.
class RankSums {
 public:
  explicit RankSums(const Ranks& ranks) : ranks_(ranks) {}  // which must outlive this
  RankPart part() const { return {ranks_.rank(), ranks_.size()}; }

  // t f32 becomes its sum over the ranks, in their order: the same bits on all.
  void add_up(Exec&, TensorView t);
  // Memory of `shape`, f32, for what is added up. Earlier memory stays, since recorded steps may work in it.
  TensorView room(Exec&, const Shape& shape);
  // Whether a step with these sums can be recorded. Collective.
  bool recordable(Exec& ex) const { return ex.on_cuda() && ranks_.link_devices(ex); }
  // What decode_layers() exchanges sums of `hidden` outputs through, and gather() up to `gathered` values, where there
  // are two ranks whose GPUs reach each other's memory; else none, and `why`. Collective. It stays with this;
  // check_peer() is an Error{device} once the other GPU has not answered.
  DecodePeer peer(Exec&, int64_t hidden, int64_t gathered, std::string* why);
  void check_peer() const;
  bool all_have(bool it) const;  // whether all ranks have something. Collective
  // While off, add_up() waits for nothing and counts nothing, as what is recorded must.
  void time(bool on) { timed_ = on; }
  // The values [begin[r], begin[r + 1]) of t [count], which rank r has, to all of them.
  void gather(Exec&, TensorView t, std::span<const int64_t> begin) const;
  // All get what rank 0 has: choices that must not differ by a last bit of ranks that are not alike.
  void agree(Exec&, TensorView t);
  int32_t agreed(Exec&, int32_t value);

  // Of add_up() so far, where it was timed: seconds, waiting for the slowest rank included, and calls.
  double seconds() const { return seconds_; }
  int64_t sums() const { return sums_; }

 private:
  const Ranks& ranks_;
  double seconds_ = 0;
  int64_t sums_ = 0;
  bool timed_ = true;
  std::vector<Tensor> rooms_;
  // Of peer(): a memory for each pair of sizes asked for, since recorded steps may use it, and what GPUs set.
  struct Window {
    int64_t hidden, gathered;
    std::unique_ptr<PeerMemory> memory;
    DecodePeer peer;
  };
  std::vector<Window> windows_;
  Tensor silent_;
};

RankPart part_of(const LoadOptions&);
// The op list that this rank runs of a model: all of it where it is alone. Error{usage} with all reasons in one line
// where the ranks cannot share the model; no weight is read.
ModelSpec shared_spec(const Checkpoint&, const LoadOptions&);

}  // namespace fewbit
