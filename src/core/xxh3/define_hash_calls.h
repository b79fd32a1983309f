#pragma once
// For plain.cpp, avx2.cpp and avx512.cpp alone, which define HASH_CALLS, the name of the calls, and name the
// instructions to the compiler before they include it.
#define XXH_INLINE_ALL
// Bytes ahead that are asked for. The library's 512 are used up before they come: of what reading the memory alone
// gives, hashing reached 0.55 with them and 0.80 with these.
#define XXH_PREFETCH_DIST 4096
#include <xxhash.h>

#include "src/core/xxh3/hash_calls.h"

namespace fewbit {
namespace {

XXH3_state_t* of(void* state) { return static_cast<XXH3_state_t*>(state); }

void* start() {
  XXH3_state_t* const state = XXH3_createState();
  if (state) XXH3_128bits_reset(state);
  return state;
}

void add(void* state, const void* bytes, size_t count) { XXH3_128bits_update(of(state), bytes, count); }

void finish(void* state, uint8_t digest[16]) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(of(state)));
  XXH3_freeState(of(state));
  for (int i = 0; i < 16; ++i) digest[i] = bytes.digest[i];
}

}  // namespace

const HashCalls HASH_CALLS = {.start = start, .add = add, .finish = finish};

}  // namespace fewbit
