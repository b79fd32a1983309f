#pragma once
// Memory of the GPUs of two ranks on one machine, which each of them may write.
#include <memory>
#include <string>

#include "kernels/exec/peer_memory.h"
#include "src/ranks/ranks.h"

namespace fewbit {

// Collective, of two ranks: `bytes` of each one's GPU, zeroed, and the other's mapped. Null on both, with the reason,
// where one of them cannot.
std::unique_ptr<PeerMemory> memory_of_two(const Ranks&, Exec&, int64_t bytes, std::string* why);

}  // namespace fewbit
