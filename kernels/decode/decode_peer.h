#pragma once
// The other GPU of a stack whose layers two GPUs share (tensor parallelism): each has its heads' rows of q, k, v, its
// rows of gate and up, and the columns of o and down that belong to them. What a GPU's columns make of an output is a
// part of it; the launch hands it to the other one as a word with a stamp, and both add the two parts.
#include <cstdint>

namespace fewbit {

struct DecodePeer {
  // [2, hidden] words: of o, and of down. A word is f32, above it its stamp (decode_layers_peer.cuh). `mine` is memory
  // of this GPU, which the other one writes; `theirs` is the other's, as this GPU sees it.
  const uint64_t* mine = nullptr;
  uint64_t* theirs = nullptr;
  // Memory of this GPU, zeroed before the first launch: how many exchanges there have been, and whether the other GPU
  // did not answer one of them.
  uint32_t* state = nullptr;
  uint32_t* silent = nullptr;  // host memory that the GPU can write: set with the latter
  uint64_t patience_ns = 0;    // for how long an exchange waits

  constexpr bool present() const { return theirs != nullptr; }
  static constexpr int64_t kStateBytes = 64;
  // Of the memory that holds the state and, behind it, the words.
  static constexpr int64_t bytes(int64_t hidden) { return kStateBytes + 2 * hidden * int64_t{sizeof(uint64_t)}; }
  static DecodePeer in(void* mine, void* theirs, uint32_t* silent, uint64_t patience_ns) {
    const auto words = [](void* at) { return reinterpret_cast<uint64_t*>(static_cast<char*>(at) + kStateBytes); };
    return {words(mine), words(theirs), static_cast<uint32_t*>(mine), silent, patience_ns};
  }
};

}  // namespace fewbit
