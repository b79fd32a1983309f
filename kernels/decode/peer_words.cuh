#pragma once
// Words that two GPUs write into each other's memory (decode_peer.h): f32, above it a stamp. A word is aligned and has
// 64 bits, so it arrives as a whole, and no fence or flag stands between the two GPUs. Stamps count on through all
// launches; both GPUs make the same launches in the same order, and begin with zeroed memory, so that a wanted stamp is
// never there beforehand.
#include "kernels/decode/decode_peer.h"

namespace fewbit::cuda {

__device__ __forceinline__ void put_part(uint64_t* to, float part, uint32_t stamp) {
  const uint64_t word = static_cast<uint64_t>(stamp) << 32 | __float_as_uint(part);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t part_at(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

// Whether it is no use to wait any longer; `since`: when the waiting began, 0 before it is known. A GPU that has given
// up once does not wait again, and what it computes from then on is worth nothing: the host fails by `silent`.
__device__ __forceinline__ bool gives_up(const DecodePeer& peer, uint64_t& since) {
  uint32_t given_up;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(given_up) : "l"(peer.state + 1) : "memory");
  if (given_up != 0) return true;
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (since == 0) since = now;
  if (now - since < peer.patience_ns) return false;
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(peer.state + 1), "r"(1) : "memory");
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peer.silent), "r"(1) : "memory");
  return true;
}

// The value of a word of this GPU's memory, once it has the stamp; anything where the other GPU does not answer. The
// lanes of a warp that call wait together.
__device__ __forceinline__ float await_part(const DecodePeer& peer, const uint64_t* from, uint32_t stamp) {
  constexpr int kLooksBetween = 64;  // of which each is a trip to the L2
  const unsigned lanes = __activemask();
  uint64_t since = 0;
  for (int looks = 1;; ++looks) {
    const uint64_t word = part_at(from);
    const bool there = static_cast<uint32_t>(word >> 32) == stamp;
    if (__all_sync(lanes, there) || (looks % kLooksBetween == 0 && __any_sync(lanes, gives_up(peer, since))))
      return __uint_as_float(static_cast<uint32_t>(word));
  }
}

}  // namespace fewbit::cuda
