#pragma once
// What the loops over the tile registers of AMX have in common: where they compile, how tiles are transposed.
#include <cstdint>

#include "kernels/cpu/x86_loops.h"

#if defined(FEWBIT_X86) && defined(__linux__)
#define FEWBIT_TILES 1
#define FEWBIT_TILE_TARGET \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))

namespace fewbit::cpu {

// The first address from `room` on that is a multiple of 64 bytes.
inline uint16_t* aligned(float* room) {
  auto* bytes = reinterpret_cast<char*>(room);
  return reinterpret_cast<uint16_t*>(bytes + (64 - reinterpret_cast<uintptr_t>(bytes) % 64) % 64);
}

// The intrinsics of GCC 12 do not say that they read memory.
inline void written() { asm volatile("" ::: "memory"); }

// Transposes a square of 16 x 16 values of 32 bits, a register a row.
FEWBIT_TILE_TARGET inline void transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 2; ++j) {
      r[4 * i + 2 * j] = _mm512_unpacklo_epi64(t[4 * i + j], t[4 * i + 2 + j]);
      r[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(t[4 * i + j], t[4 * i + 2 + j]);
    }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j) {
      t[8 * i + j] = _mm512_shuffle_i32x4(r[8 * i + j], r[8 * i + 4 + j], 0x88);
      t[8 * i + 4 + j] = _mm512_shuffle_i32x4(r[8 * i + j], r[8 * i + 4 + j], 0xdd);
    }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
  }
}

}  // namespace fewbit::cpu

#endif
