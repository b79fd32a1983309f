#include "src/ranks/memory_of_two.h"

#include <fmt/format.h>

#include "src/ranks/exchange.h"

namespace fewbit {

std::unique_ptr<PeerMemory> memory_of_two(const Ranks& ranks, Exec& ex, int64_t bytes, std::string* why) {
  FEWBIT_ASSERT(ranks.size() == 2);
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

}  // namespace fewbit
