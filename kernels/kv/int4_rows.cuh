#pragma once
// Rows of keys or values of 4 bits on the GPU (kernels/kv/int4_rows.h): one or several warps fit and store a row; a
// kernel widens all rows of a cache. Every sum is exact and every rounding that of the CPU half, so that the codes are
// the same.
#include <type_traits>

#include "kernels/device/kv_codes.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/kv/int4_rows.h"

namespace fewbit::cuda::nibble_rows {

constexpr uint32_t kAll = 0xffffffffu;
constexpr float kRounder = 12582912;  // added and taken off again, it rounds to an integer, to nearest even

struct Grid {
  float step, zero;
};
// Sums over codes c and integers x of a group: at most 960, 14,400 and 1,965,120.
struct Sums {
  int c, cc, cx;
};
// What least squares divides: step = along / spread, zero = across / spread. None passes 2^31: x is at most 64 * 2,047,
// and across = sum of x_i c_j (c_j - c_i) over all pairs.
struct Fit {
  float along = 0, across = 0, spread = 0;
};

// Least squares for the codes that have these sums; false, and all as it was, where the codes are all equal.
__device__ __forceinline__ bool solve(const Sums& s, int sum_x, int n, Fit& fit, Grid& grid) {
  const int along = n * s.cx - s.c * sum_x, spread = n * s.cc - s.c * s.c;
  if (spread <= 0 || along <= 0) return false;
  fit = {static_cast<float>(along), static_cast<float>(sum_x * s.cc - s.c * s.cx), static_cast<float>(spread)};
  grid = {__fdiv_rn(fit.along, fit.spread), __fdiv_rn(fit.across, fit.spread)};
  return true;
}

// kRounder + the code of x.
__device__ __forceinline__ float rounded_code(float x, const Grid& g, float inverse) {
  return __fadd_rn(fminf(fmaxf(__fmul_rn(__fsub_rn(x, g.zero), inverse), 0.f), 15.f), kRounder);
}

// A group of n values, a warp's lane l having those of features 2 l and 2 l + 1, zeros past the last, as integers of 12
// bits.
struct Group {
  int n;
  float x[2];
  int sum;
  float low, high;
};

// Start k: a grid that cuts off some of the range.
__device__ __forceinline__ Grid start(const Group& group, int k) {
  const float range = group.high - group.low, i = static_cast<float>(k % 4), j = static_cast<float>(k / 4);
  return {__fdiv_rn(range * (50 - 2 * i - j), 750.f), __fdiv_rn(50 * group.low + 2 * i * range, 50.f)};
}

// What a start came to; the one with more gain is better, of equals the earlier.
struct Candidate {
  Grid grid;
  float gain;
  int start;
  __device__ __forceinline__ void take_better(const Candidate& other) {
    if (other.gain > gain || (other.gain == gain && other.start < start)) *this = other;
  }
};

// The best of this warp's starts. A group has kWarps warps, this one being number `warp`: each has 32 / kWarps starts,
// and kWarps lanes share the values of a start. xs [64]: room of the warp's own.
template <int kWarps>
__device__ inline Candidate best_start(const Group& group, float* xs, int warp) {
  constexpr int kStarts = kInt4Starts / kWarps, kQuads = static_cast<int>(kInt4Group) / 4 / kWarps;
  const int lane = threadIdx.x % 32, part = lane % kWarps;
  __syncwarp();  // the group before has been read
  *reinterpret_cast<float2*>(xs + 2 * lane) = {group.x[0], group.x[1]};
  __syncwarp();
  Candidate own{{}, -1, warp * kStarts + lane / kWarps};
  own.grid = start(group, own.start);
  Fit fit;
  bool goes_on = true;
#pragma unroll 1
  for (int pass = 0; pass < kInt4StartPasses; ++pass) {
    const float inverse = __frcp_rn(own.grid.step);
    float c = 0, cc = 0, cx = 0;  // exact
    const auto add_all = [&](auto whole) {
      const auto add = [&](float x, int at) {
        const bool there = decltype(whole)::value || at < group.n;
        const float code = there ? __fsub_rn(rounded_code(x, own.grid, inverse), kRounder) : 0.f;
        c += code, cc = fmaf(code, code, cc), cx = fmaf(code, x, cx);
      };
#pragma unroll 4
      for (int i = 0; i < kQuads; ++i) {
        const int at = 4 * (i * kWarps + part);
        const float4 x = *reinterpret_cast<const float4*>(xs + at);
        add(x.x, at), add(x.y, at + 1), add(x.z, at + 2), add(x.w, at + 3);
      }
    };
    group.n == kInt4Group ? add_all(std::true_type{}) : add_all(std::false_type{});
#pragma unroll
    for (int other = 1; other < kWarps; other *= 2) {
      c += __shfl_xor_sync(kAll, c, other);
      cc += __shfl_xor_sync(kAll, cc, other);
      cx += __shfl_xor_sync(kAll, cx, other);
    }
    goes_on = goes_on && solve({static_cast<int>(c), static_cast<int>(cc), static_cast<int>(cx)}, group.sum, group.n,
                               fit, own.grid);
  }
  if (fit.spread > 0) own.gain = __fdiv_rn(__fmul_rn(fit.along, fit.along), fit.spread);
#pragma unroll
  for (int other = kWarps; other < 32; other *= 2)
    own.take_better({{__shfl_xor_sync(kAll, own.grid.step, other), __shfl_xor_sync(kAll, own.grid.zero, other)},
                     __shfl_xor_sync(kAll, own.gain, other),
                     __shfl_xor_sync(kAll, own.start, other)});
  return own;
}

// The further passes of the best start, by one warp; a grid that a pass leaves as it was stays so.
__device__ inline Grid refined(const Group& group, const Candidate& best) {
  const bool there = 2 * static_cast<int>(threadIdx.x % 32) < group.n;
  const int x[2] = {static_cast<int>(group.x[0]), static_cast<int>(group.x[1])};
  Grid g = best.grid;
  Fit fit;
#pragma unroll 1
  for (int pass = 0; best.gain >= 0 && pass < kInt4Refinements; ++pass) {
    const float inverse = __frcp_rn(g.step);
    int code[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      code[i] = there ? __float_as_int(rounded_code(group.x[i], g, inverse)) - __float_as_int(kRounder) : 0;
    const int squares = code[0] * code[0] + code[1] * code[1];  // their sums have 14 bits, those of codes 10
    const int sums = __reduce_add_sync(kAll, squares << 10 | (code[0] + code[1]));
    const int cx = __reduce_add_sync(kAll, code[0] * x[0] + code[1] * x[1]);
    const Grid before = g;
    if (!solve({sums & 1023, sums >> 10, cx}, group.sum, group.n, fit, g)) break;
    if (g.step == before.step && g.zero == before.zero) break;
  }
  return g;
}

// The values of a group as integers, by the factor `up`; false where they need no fit, `word` then being their scale
// and center.
__device__ inline bool take_group(float v0, float v1, int n, Group& group, float& up, uint32_t& word) {
  const unsigned most = __reduce_max_sync(kAll, __float_as_uint(fmaxf(fabsf(v0), fabsf(v1))));
  // Of a NaN and a number fmaxf() takes the number.
  if (__any_sync(kAll, !isfinite(v0) || !isfinite(v1))) return word = 0x7fc07fc0u, false;
  up = __fdiv_rn(2047.f, __uint_as_float(most));
  if (most == 0 || !isfinite(up)) return word = 0, false;
  const int x0 = __float2int_rn(__fmul_rn(v0, up)), x1 = __float2int_rn(__fmul_rn(v1, up));
  group = {n,
           {static_cast<float>(x0), static_cast<float>(x1)},
           __reduce_add_sync(kAll, x0 + x1),
           static_cast<float>(__reduce_min_sync(kAll, min(min(x0, x1), 0))),
           static_cast<float>(__reduce_max_sync(kAll, max(max(x0, x1), 0)))};
  return true;
}

// Scale and center of a group as one word, the scale in its low half.
__device__ __forceinline__ uint32_t word_of(const Grid& g, float up) {
  const __nv_bfloat16 scale = __float2bfloat16_rn(__fdiv_rn(g.step, up)),
                      center = __float2bfloat16_rn(__fdiv_rn(__fadd_rn(g.zero, 8 * g.step), up));
  return __bfloat16_as_ushort(scale) | static_cast<uint32_t>(__bfloat16_as_ushort(center)) << 16;
}

__device__ __forceinline__ float scale_of(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float center_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Stores the codes of a group, two a lane, and its word.
__device__ __forceinline__ void store_group(float v0, float v1, int n, uint32_t word, uint8_t* codes, uint32_t* to) {
  const int lane = threadIdx.x % 32;
  const float scale = scale_of(word), center = center_of(word);
  const float inverse = scale > 0 ? __frcp_rn(scale) : 0.f;
  const auto code = [&](float v) {
    const float c = rintf(__fmul_rn(__fsub_rn(v, center), inverse));
    return c > -8 ? static_cast<uint32_t>(fminf(c, 7.f) + 8) : 0u;
  };
  if (2 * lane < n) codes[lane] = static_cast<uint8_t>(code(v0) | code(v1) << 4);
  if (lane == 0) *to = word;
}

// What the warps of a block share while they fit a row, kWarps a group.
template <int kBlockWarps, int kWarps>
struct FitRoom {
  alignas(16) float xs[kBlockWarps][kInt4Group];
  Candidate best[kWarps > 1 ? kBlockWarps : 1];
};

// The codes of a row of d values (even), and the word of each of its groups; the work of all of a block's warps, kWarps
// of them for a group at a time. With one warp a group, `warps` of them, this one being number `warp`, have a row.
template <int kWarps, class T, class Room>
__device__ void store_row(const T* x, uint8_t* codes, uint32_t* scales, int d, Room& room, int warps, int warp) {
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32, teams = warps / kWarps;
#pragma unroll 1
  for (int first = 0; first < static_cast<int>(int4_groups(d)); first += teams) {
    const int g = first + warp / kWarps, begin = g * static_cast<int>(kInt4Group), at = begin + 2 * lane;
    const int n = min(static_cast<int>(kInt4Group), d - begin);  // none or less: the team has no group this time
    const float v0 = 2 * lane < n ? to_f32(x[at]) : 0.f, v1 = 2 * lane < n ? to_f32(x[at + 1]) : 0.f;
    Group group;
    float up = 1;
    uint32_t word = 0;
    const bool fits = n > 0 && take_group(v0, v1, n, group, up, word);
    Candidate best{};
    if (fits) best = best_start<kWarps>(group, room.xs[own], warp % kWarps);
    if constexpr (kWarps > 1) {
      if (fits && lane == 0) room.best[own] = best;
      __syncthreads();
      if (fits && warp % kWarps == 0)
        for (int i = 1; i < kWarps; ++i) best.take_better(room.best[own + i]);
      if (first + teams < static_cast<int>(int4_groups(d))) __syncthreads();
    }
    if (n <= 0 || warp % kWarps > 0) continue;
    if (fits) word = word_of(refined(group, best), up);
    store_group(v0, v1, n, word, codes + begin / 2, scales + g);
    __syncwarp();
  }
}

// The value of feature `col` of a row.
__device__ __forceinline__ float value_at(const I4Codes* row, const uint32_t* scales, int col) {
  const uint32_t word = scales[col / kInt4Group], two = row[col / 2].bits;
  return fmaf(static_cast<float>(static_cast<int>(two >> (col % 2 * 4) & 15) - 8), scale_of(word), center_of(word));
}

// Two codes a thread: rows [rows, d / 2] as bf16 [rows, d].
inline constexpr int kWidenThreads = 256;
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const I4Codes* __restrict__ codes, const uint32_t* __restrict__ scales,
                 __nv_bfloat162* __restrict__ to, int64_t pairs, int row_pairs, int groups) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pairs) return;
  const int64_t row = i / row_pairs;
  const int col = static_cast<int>(i % row_pairs) * 2;
  const uint32_t word = scales[row * groups + col / kInt4Group], two = codes[i].bits;
  const float scale = scale_of(word), center = center_of(word);
  to[i] = __floats2bfloat162_rn(fmaf(static_cast<float>(static_cast<int>(two & 15) - 8), scale, center),
                                fmaf(static_cast<float>(static_cast<int>(two >> 4) - 8), scale, center));
}

}  // namespace fewbit::cuda::nibble_rows
