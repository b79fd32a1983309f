#pragma once
// What the loops of tile_product.h and tile_matmul.h have in common: where they compile, how tiles are transposed, how
// x is brought into the order of a weight.
#include <array>
#include <cstdint>

#include "kernels/cpu/tile_product.h"
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

// Tile `tile` of a row of x in the order of the weight.
FEWBIT_TILE_TARGET inline __m512i x_tile_row(const bf16* row, int64_t tile, ColumnOrder order) {
  if (order == ColumnOrder::natural) return _mm512_loadu_si512(row + tile * kTileCols);
  alignas(64) static constexpr auto kByFour = [] {
    std::array<uint16_t, 32> at{};
    for (size_t i = 0; i < 32; ++i) at[i] = static_cast<uint16_t>(i % 8 * 4 + i / 8);
    return at;
  }();
  return _mm512_permutexvar_epi16(_mm512_load_si512(kByFour.data()), _mm512_loadu_si512(row + tile * kTileCols));
}

}  // namespace fewbit::cpu

#endif
