#pragma once
// A key/value cache in the form of KIVI (Liu et al., 2024, section 3): keys in groups of 32 tokens of a channel, values
// in groups of 32 features of a token, as codes of 2 or 4 bits with a scale and a zero point each, nothing turned; the
// last tokens of every query as they are (kernels/kivi/kivi_grid.h).
#include <algorithm>

#include "kernels/exec/exec.h"
#include "kernels/kivi/kivi_grid.h"

namespace fewbit {

// The cache of one layer. Codes stand there as soon as a group is complete, but a query reads the recent rows for what
// lies in its window.
struct KiviCache {
  int bits = 2;  // 2 | 4
  // u8 [batch, kv_heads, capacity, head_dim * bits / 8], capacity and head_dim multiples of 32: 8 / bits features of a
  // token to a byte, the first in the low bits.
  TensorView k{}, v{};
  // bf16, scale and zero in turn: of keys [batch, kv_heads, capacity / 32, 2 * head_dim], of values [batch, kv_heads,
  // capacity, 2 * head_dim / 32].
  TensorView k_scales{}, v_scales{};
  // The last rows in the type of the activations, position p in row p % ring: [batch, kv_heads, ring, head_dim]; ring
  // is a multiple of 32.
  TensorView k_recent{}, v_recent{};
};

// Rows of the ring of a cache of `capacity` positions for passes of up to `pass` new tokens of a sequence: all of the
// pass, and what its first query sees behind it. A ring with room for all positions forgets nothing.
constexpr int64_t kivi_ring(int64_t capacity, int64_t pass) {
  const int64_t most = std::min(capacity, pass + kKiviWindow + kKiviGroup - 2);
  return (most + kKiviGroup - 1) / kKiviGroup * kKiviGroup;
}
// `capacity` positions rounded up to whole groups.
constexpr int64_t kivi_capacity(int64_t capacity) { return (capacity + kKiviGroup - 1) / kKiviGroup * kKiviGroup; }

// Whether the tensors of a cache fit each other, activations of type `compute`, and passes of `len` tokens of a
// sequence. Both halves of the ops assert it.
inline bool consistent(const KiviCache& c, DType compute, int64_t len) {
  const Shape& s = c.k.shape;
  if (s.rank() != 4 || c.k_recent.shape.rank() != 4 || (c.bits != 2 && c.bits != 4)) return false;
  const int64_t d = s[3] * 8 / c.bits, ring = c.k_recent.shape[2];
  const Shape recent{s[0], s[1], ring, d};
  return d % kKiviGroup == 0 && s[2] % kKiviGroup == 0 && ring % kKiviGroup == 0 && ring >= kivi_ring(s[2], len) &&
         c.k.dtype == DType::u8 && c.v.dtype == DType::u8 && c.v.shape == s && c.k_scales.dtype == DType::bf16 &&
         c.v_scales.dtype == DType::bf16 && c.k_scales.shape == Shape{s[0], s[1], s[2] / kKiviGroup, 2 * d} &&
         c.v_scales.shape == Shape{s[0], s[1], s[2], 2 * d / kKiviGroup} && c.k_recent.dtype == compute &&
         c.v_recent.dtype == compute && c.k_recent.shape == recent && c.v_recent.shape == recent;
}

}  // namespace fewbit
