// OutShards, the tensors of a block on their way to where they will stay.
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <future>
#include <numeric>

#include "formats/containers/safetensors_file.h"
#include "src/core/inline_parallel.h"
#include "src/core/parallel.h"
#include "src/quant/output/out_shards.h"

namespace fewbit {
namespace {

// Threads that put the tensors of a block into its files: one takes the digest of its own while another's bytes go into
// the system's memory. They are none of the pool's, which packs the next block meanwhile.
constexpr int kPutting = 4;

// Bytes of a tensor whose digest who puts a block takes in passing. A whole embedding would hold up the block's seal.
constexpr int64_t kInPassing = int64_t{64} << 20;

// Calls `put` for each of `count`, on a few threads where the machine has threads to spare. Rethrows an error.
void by_several(size_t count, const std::function<void(size_t)>& put) {
  std::atomic<size_t> next = 0;
  const auto some = [&] {
    const InlineParallel alone;
    for (size_t i = next++; i < count; i = next++) put(i);
  };
  std::vector<std::future<void>> others;
  for (int i = 1; i < std::min(kPutting, thread_count() / 2); ++i)
    others.push_back(std::async(std::launch::async, some));
  std::exception_ptr error;
  try {
    some();
  } catch (...) {
    error = std::current_exception();
  }
  for (std::future<void>& f : others) try {
      f.get();
    } catch (...) {
      error = std::current_exception();
    }
  if (error) std::rethrow_exception(error);
}

}  // namespace

// Puts a block's tensors where they will stay. Called by whoever seals it.
std::optional<SealedRanges> OutShards::place(int64_t layer, const std::vector<NamedTensor>& tensors) {
  std::vector<TensorInfo> infos;
  std::vector<Shard> to;
  SealedRanges ranges;
  {
    const std::lock_guard lock(guard_);
    for (const NamedTensor& t : tensors) {
      const auto at = place_of_.find(t.name);
      if (otherwise_ || at == place_of_.end()) return std::nullopt;
      infos.push_back(
          {.name = t.name, .dtype = t.tensor.dtype(), .shape = t.tensor.shape(), .bytes = t.tensor.bytes()});
      to.push_back(foreseen(at->second.shard, infos.back()));
      if (!to.back()) return std::nullopt;
      ranges.push_back({.shard = at->second.shard, .tensor = t.name, .digest = ""});
    }
    for (const SealedRange& r : ranges) with_blocks_.insert(r.shard);
  }
  // In the order of the files, whose digests go on meanwhile: one of those who put takes them as far as there is no
  // gap.
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (ranges[a].shard != ranges[b].shard) return ranges[a].shard < ranges[b].shard;
    return safetensors::written_before(infos[a], infos[b]);
  });
  by_several(order.size(), [&](size_t k) {
    const size_t i = order[k];
    ranges[i].digest = to[i]->put_in_passing(tensors[i].name, tensors[i].tensor);
    to[i]->catch_up(kInPassing);
  });
  const std::lock_guard lock(guard_);
  placed_.emplace(layer, std::move(infos));
  return ranges;
}

}  // namespace fewbit
