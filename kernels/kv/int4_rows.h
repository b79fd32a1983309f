#pragma once
// Rows of keys or values as codes of 4 bits: how a group of features is fitted, stored and read back.
//
// Group g of a row is features [64 g, 64 g + 64), the last one what is left. A code c in [0, 15] stands for
//   center + (c - 8) * scale       scale and center of its group, in bf16
// so that a row of 128 takes 64 + 8 bytes. Groups of 64 with two exact numbers lose less than groups of 32 with a byte
// of each: what the fit gains, it gains by placing the grid between the values, which a coarse scale undoes.
//
// The fit is least squares over codes and grid in turn (Lloyd, Least squares quantization in PCM, 1982), from several
// grids that cut off the ends of the range; the best one goes on. It works on the values as integers of 12 bits, so
// that all sums are exact in f32 and a GPU, which adds in another order, finds the same codes:
//   X = rint(x * (2047 / amax)),  low = min(X, 0),  high = max(X, 0) over the group,  r = high - low
//   start k of 32, i = k % 4, j = k / 4:   zero = (50 low + 2 i r) / 50,   step = r (50 - 2 i - j) / 750
//   a pass, two for each start:  c = rint(clamp((X - zero) * (1 / step), 0, 15)), then the step and zero of least
//     squares for these codes;  a start is done where all its codes are equal
//   the start that explains most of the sum of squares (the first of equals) has up to kInt4Refinements passes more;
//   scale = bf16(step / up), center = bf16((zero + 8 step) / up), up = 2047 / amax
//   code of x:  rint(clamp((x - center) * (1 / scale), -8, 7)) + 8
// A group of zeros has scale and center 0. One with a NaN or an infinity has NaN for both, so that it stays visible.
#include <cstdint>

#include "src/core/half.h"

namespace fewbit {

inline constexpr int64_t kInt4Group = 64;
inline constexpr int kInt4Starts = 32, kInt4StartPasses = 2, kInt4Refinements = 6;
constexpr int64_t int4_groups(int64_t head_dim) { return (head_dim + kInt4Group - 1) / kInt4Group; }

struct Int4Scale {
  bf16 scale, center;
};

namespace cpu {
// Two codes to a byte, the even feature's in the low four bits; d is even.
//   codes [d / 2], scales [int4_groups(d)]
void int4_row(const float* x, int64_t d, uint8_t* codes, Int4Scale* scales);
void widen_int4_row(const uint8_t* codes, const Int4Scale* scales, float* y, int64_t d);
}  // namespace cpu
}  // namespace fewbit
