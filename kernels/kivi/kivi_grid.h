#pragma once
// The numbers of KIVI's codes (Liu et al., KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache, 2024, section
// 3), shared word for word by both halves: which keys a query sees as codes, and how a group of 32 values is coded.
//
// A group goes from its smallest to its largest value, in 2 or 4 bits; both of its numbers are bf16, rounded before
// codes are computed:
//   zero = bf16(min), of -0 the 0,  scale = bf16((max - zero) / levels),  levels = 2^bits - 1
//   code of x = rint(clamp((x - zero) * (1 / scale), 0, levels)),  0 where scale is 0;  it stands for zero + code *
//   scale
// A group with a NaN or an infinity has NaN for both numbers, so that it stays visible.
#include <cmath>
#include <cstdint>

#include "src/core/host_device.h"

namespace fewbit {

inline constexpr int kKiviGroup = 32;    // tokens of a channel of the keys; features of a token of the values
inline constexpr int kKiviWindow = 128;  // a group of tokens is seen as codes from the query so far behind its last one

// Keys and values [0, kivi_coded(p)) are codes to the query at position p, those behind as they are: its last 128 to
// 159 tokens. A function of p alone, so that a prompt in one pass, in chunks or token by token sees the same.
FEWBIT_HD int64_t kivi_coded(int64_t p) {
  return p + 1 < kKiviWindow ? 0 : (p + 1 - kKiviWindow) / kKiviGroup * kKiviGroup;
}
FEWBIT_HD float kivi_low(float min) { return min + 0.f; }  // a -0 becomes 0
FEWBIT_HD int kivi_levels(int bits) { return (1 << bits) - 1; }

// What (max - zero) / levels is before it is rounded to bf16; zero is rounded already.
FEWBIT_HD float kivi_step(float zero, float max, int bits) {
  const float range = max - zero;
  return (range > 0 ? range : 0.f) / static_cast<float>(kivi_levels(bits));
}
// 1 / scale, 0 for a scale of 0.
FEWBIT_HD float kivi_inverse(float scale) { return scale > 0 ? 1 / scale : 0.f; }
FEWBIT_HD int kivi_code(float x, float zero, float inverse, int bits) {
  const float at = (x - zero) * inverse, top = static_cast<float>(kivi_levels(bits));
  return at > 0 ? static_cast<int>(rintf(at < top ? at : top)) : 0;  // of a NaN 0: its group's numbers show it
}

}  // namespace fewbit
