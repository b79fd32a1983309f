#pragma once
// The exchange with the other GPU of a shared stack (decode_peer.h), from inside the launch: whoever finishes an output
// of o or down writes its part into the other GPU's memory and waits for the other's part of the same output.
//
// The exchanges of o and those of down come in turn, and each of the two has words of its own. These two are enough:
// nobody overwrites a part that has not been read. A GPU writes the parts of exchange e + 2 where those of e were. It
// does so in a phase behind a barrier of its grid (or a launch), which all its blocks have reached with the other GPU's
// parts of exchange e + 1 in hand. Those the other GPU wrote in a phase behind a barrier of its own grid, which its
// blocks have reached with all parts of exchange e in hand. (With one place for all exchanges e + 1 would overwrite
// what a slower block over there still looks for.) It does not matter how each of the two divides the outputs among its
// blocks.
#include "kernels/decode/peer_words.cuh"

namespace fewbit::cuda::decode_step {

// The sum of both GPUs' parts of an output, whose word is number `at`: in f32, so that the order of the two does not
// matter, and both have the same bits.
__device__ __forceinline__ float with_other_part(const DecodePeer& peer, int at, float part, uint32_t stamp) {
  put_part(peer.theirs + at, part, stamp);
  return part + await_part(peer, peer.mine + at, stamp);
}

}  // namespace fewbit::cuda::decode_step
