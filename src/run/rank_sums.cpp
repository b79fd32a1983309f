#include "src/run/rank_sums.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/stopwatch.h"
#include "src/core/strings.h"
#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

// How long a GPU waits for the other one's part of a sum. Only a rank that hangs, or was stopped, is as late as that:
// of one that ended the others hear from elsewhere (tools/cli/rank_watch.h), and end at once.
constexpr uint64_t kPatienceSeconds = 30;

// Memory of both ranks of a machine, which their GPUs write in turn; null on both, with the reason, where one cannot.
std::unique_ptr<PeerMemory> shared_memory(const Ranks& ranks, Exec& ex, int64_t bytes, std::string* why) {
  for (int r = 0; r < ranks.size(); ++r)
    if (!true_for_all(ranks, text_of_root(ranks, host_name(), r) == host_name()))
      return *why = "the ranks are on several machines", nullptr;
  std::unique_ptr<PeerMemory> memory = make_peer_memory(ex, bytes, why);
  // Asked again behind the ranks' answer: in a build without CUDA a compiler sees that there is never any memory.
  if (true_for_all(ranks, memory != nullptr) && memory) {
    const PeerHandle mine = memory->handle(), of_first = value_of_root(ranks, mine, 0),
                     of_second = value_of_root(ranks, mine, 1);
    if (true_for_all(ranks, memory->open(ranks.rank() == 0 ? of_second : of_first, why))) return memory;
  }
  *why = fmt::format("the GPUs do not reach each other's memory{}", why->empty() ? "" : ": " + *why);
  return nullptr;
}

}  // namespace

TensorView RankSums::room(Exec& ex, const Shape& shape) {
  const int64_t count = shape.numel();
  if (rooms_.empty() || rooms_.back().numel() < count) rooms_.push_back(ex.alloc(DType::f32, {count}));
  return rooms_.back().view().row_range(0, count).reshaped(shape);
}

void RankSums::add_up(Exec& ex, TensorView t) {
  if (!timed_) return ranks_.all_reduce_sum(ex, t);
  ex.sync();  // what is computed before is none of the sum's time
  const Stopwatch watch;
  ranks_.all_reduce_sum(ex, t);
  seconds_ += watch.seconds();
  ++sums_;
}

DecodePeer RankSums::peer(Exec& ex, int64_t hidden, int64_t gathered, std::string* why) {
  if (ranks_.size() != 2) {
    *why = fmt::format("sums over {} ranks lie between the ops; those of two are made in the launch", ranks_.size());
    return {};
  }
  if (!recordable(ex))
    return *why = "sums over the ranks lie between the ops, and NCCL does not link the GPUs", DecodePeer{};
  if (silent_.empty()) {
    silent_ = ex.alloc_pinned(DType::i32, {1});
    *silent_.as<int32_t>() = 0;
  }
  for (const Window& w : windows_)
    if (w.hidden == hidden && w.gathered == gathered) return w.peer;
  std::unique_ptr<PeerMemory> memory = shared_memory(ranks_, ex, DecodePeer::bytes(hidden, gathered), why);
  if (!memory) return {};
  const DecodePeer peer =
      DecodePeer::in(memory->mine(), memory->theirs(), hidden, reinterpret_cast<uint32_t*>(silent_.as<int32_t>()),
                     kPatienceSeconds * 1000000000);
  windows_.push_back({hidden, gathered, std::move(memory), peer});
  return peer;
}

void RankSums::gather(Exec& ex, TensorView t, std::span<const int64_t> begin) const {
  const auto own = static_cast<size_t>(ranks_.rank());
  for (const Window& w : windows_)
    if (w.gathered == t.numel()) return gather_from_peer(ex, w.peer, t, begin[own], begin[own + 1]);
  ranks_.all_gather_rows(ex, t, begin);
}

void RankSums::check_peer() const {
  if (silent_.empty() || *static_cast<const volatile int32_t*>(silent_.as<int32_t>()) == 0) return;
  fail(ErrorKind::device, fmt::format("the GPU of rank {} did not answer for {} s in the middle of a decode step",
                                      1 - ranks_.rank(), kPatienceSeconds));
}

bool RankSums::all_have(bool it) const { return true_for_all(ranks_, it); }

void RankSums::agree(Exec& ex, TensorView t) { ranks_.broadcast(ex, t); }

int32_t RankSums::agreed(Exec& ex, int32_t value) {
  const Tensor host = Tensor::host(DType::i32, {1});
  *host.as<int32_t>() = value;
  agree(ex, host);
  return *host.as<int32_t>();
}

RankPart part_of(const LoadOptions& o) { return o.ranks ? o.ranks->part() : RankPart{}; }

ModelSpec shared_spec(const Checkpoint& c, const LoadOptions& o) {
  const RankPart part = part_of(o);
  if (const std::vector<std::string> reasons = refuses_ranks(c, part.ranks); !reasons.empty())
    fail(ErrorKind::usage, fmt::format("{}: --tp {}: the model cannot be divided so: {}", c.dir.string(), part.ranks,
                                       join(reasons, "; ")));
  return spec_of_rank(c.spec, part);
}

}  // namespace fewbit
