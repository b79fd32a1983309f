#pragma once
// The other GPU of a stack whose layers two GPUs share (tensor parallelism): each has its heads' rows of q, k, v, its
// rows of gate and up, and the columns of o and down that belong to them. What a GPU's columns make of an output is a
// part of it; the launch hands it to the other one as a word with a stamp, and both add the two parts.
#include <cstdint>

#include "kernels/exec/exec.h"

namespace fewbit {

struct DecodePeer {
  // Words for the parts of o and of down, [2, hidden], and for gather_from_peer(), [gathered]. A word is f32, above it
  // its stamp (peer_words.cuh). `mine` is memory of this GPU, which the other one writes; `theirs` is the other's, as
  // this GPU sees it.
  const uint64_t *mine = nullptr, *mine_gathered = nullptr;
  uint64_t *theirs = nullptr, *theirs_gathered = nullptr;
  // Memory of this GPU, zeroed before the first launch: how many exchanges of parts there have been, whether the other
  // GPU did not answer one, how many gathers there have been.
  uint32_t* state = nullptr;
  uint32_t* silent = nullptr;  // host memory that the GPU can write: set where the other GPU did not answer
  uint64_t patience_ns = 0;    // for how long a launch waits for an answer

  constexpr bool present() const { return theirs != nullptr; }
  static constexpr int64_t kStateBytes = 64;
  // Of the memory that holds the state and, behind it, the words.
  static constexpr int64_t bytes(int64_t hidden, int64_t gathered) {
    return kStateBytes + (2 * hidden + gathered) * int64_t{sizeof(uint64_t)};
  }
  static DecodePeer in(void* mine, void* theirs, int64_t hidden, uint32_t* silent, uint64_t patience_ns) {
    const auto words = [](void* at) { return reinterpret_cast<uint64_t*>(static_cast<char*>(at) + kStateBytes); };
    return {words(mine),
            words(mine) + 2 * hidden,
            words(theirs),
            words(theirs) + 2 * hidden,
            static_cast<uint32_t*>(mine),
            silent,
            patience_ns};
  }
};

// t [count] f32: of the values [begin, end), which this GPU has, the other one gets a copy, and this one of all others.
// Both GPUs call it, between launches in which they exchange something else. There is no such thing on the CPU.
#ifdef FEWBIT_HAS_CUDA
void gather_from_peer(Exec&, const DecodePeer&, TensorView t, int64_t begin, int64_t end);
#else
inline void gather_from_peer(Exec&, const DecodePeer&, TensorView, int64_t, int64_t) { bug("a GPU's op on the CPU"); }
#endif

}  // namespace fewbit
