#pragma once
// The exchange with the other GPU of a shared stack (decode_peer.h), from inside the launch: whoever finishes an output
// of o or down writes its part into the other GPU's memory and waits for the other's part of the same output. A part
// and its stamp are one aligned word of 64 bits, which arrives as a whole, so that no fence or flag stands between the
// two GPUs.
//
// Stamps count the exchanges of all launches; both GPUs make the same launches in the same order, and begin with zeroed
// memory, so that a wanted stamp is never there beforehand. The exchanges of o and those of down come in turn, and each
// of the two has words of its own. These two are enough: nobody overwrites a part that has not been read. A GPU writes
// the parts of exchange e + 2 where those of e were. It does so in a phase behind a barrier of its grid (or a launch),
// which all its blocks have reached with the other GPU's parts of exchange e + 1 in hand. Those the other GPU wrote in
// a phase behind a barrier of its own grid, which its blocks have reached with all parts of exchange e in hand. (With
// one place for all exchanges e + 1 would overwrite what a slower block over there still looks for.) It does not matter
// how each of the two divides the outputs among its blocks.
#include "kernels/decode/decode_layers_job.cuh"
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda::decode_step {

#ifdef FEWBIT_SM90A
__device__ __forceinline__ void put_part(uint64_t* to, float part, uint32_t stamp) {
  const uint64_t word = static_cast<uint64_t>(stamp) << 32 | __float_as_uint(part);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t part_at(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Whether it is no use to wait any longer; `since`: when the waiting began, 0 before it is known. A GPU that has given
// up once does not wait again, and what it computes from then on is worth nothing: the host fails by `silent`.
__device__ __forceinline__ bool gives_up(const DecodePeer& peer, uint64_t& since) {
  uint32_t given_up;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(given_up) : "l"(peer.state + 1) : "memory");
  if (given_up != 0) return true;
  const uint64_t now = nanoseconds();
  if (since == 0) since = now;
  if (now - since < peer.patience_ns) return false;
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(peer.state + 1), "r"(1) : "memory");
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peer.silent), "r"(1) : "memory");
  return true;
}

// The sum of both GPUs' parts of an output, whose word is number `at`: in f32, so that the order of the two does not
// matter, and both have the same bits. The lanes of a warp that call wait together.
__device__ __forceinline__ float with_other_part(const DecodePeer& peer, int at, float part, uint32_t stamp) {
  constexpr int kLooksBetween = 64;  // of which each is a trip to the L2
  put_part(peer.theirs + at, part, stamp);
  const unsigned lanes = __activemask();
  uint64_t since = 0;
  for (int looks = 1;; ++looks) {
    const uint64_t word = part_at(peer.mine + at);
    const bool there = static_cast<uint32_t>(word >> 32) == stamp;
    if (__all_sync(lanes, there)) return part + __uint_as_float(static_cast<uint32_t>(word));
    if (looks % kLooksBetween == 0 && __any_sync(lanes, gives_up(peer, since))) return part;
  }
}
#endif

}  // namespace fewbit::cuda::decode_step
