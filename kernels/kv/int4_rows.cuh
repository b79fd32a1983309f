#pragma once
// Rows of keys or values of 4 bits on the GPU (kernels/kv/int4_rows.h): a warp fits and stores a row; a kernel widens
// all rows of a cache. Every sum is exact and every rounding that of the CPU half, so that the codes are the same.
#include "kernels/device/kv_codes.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/kv/int4_rows.h"

namespace fewbit::cuda::nibble_rows {

constexpr uint32_t kAll = 0xffffffffu;
constexpr float kRounder = 12582912;  // added and taken off again, it rounds to an integer, to nearest even

struct Grid {
  float step, zero, gain;
};
// Sums over codes c and integers x, exact in f32.
struct Sums {
  float c = 0, cc = 0, cx = 0;
};

// Least squares for the codes that have these sums; false, and the grid as it was, where the codes are all equal.
__device__ __forceinline__ bool solve(const Sums& sums, float sum_x, int n, Grid& grid) {
  const auto c = static_cast<long long>(sums.c), cc = static_cast<long long>(sums.cc),
             cx = static_cast<long long>(sums.cx), x = static_cast<long long>(sum_x);
  const long long along = n * cx - c * x, spread = n * cc - c * c;
  if (spread <= 0 || along <= 0) return false;
  const float a = __ll2float_rn(along), d = __ll2float_rn(spread);
  grid = {__fdiv_rn(a, d), __fdiv_rn(__ll2float_rn(x * cc - c * cx), d), __fdiv_rn(__fmul_rn(a, a), d)};
  return true;
}

__device__ __forceinline__ void add_code(Sums& s, float x, const Grid& g, float inverse) {
  const float at = fminf(fmaxf(__fmul_rn(__fsub_rn(x, g.zero), inverse), 0.f), 15.f);
  const float code = __fsub_rn(__fadd_rn(at, kRounder), kRounder);
  s.c += code;
  s.cc = fmaf(code, code, s.cc);
  s.cx = fmaf(code, x, s.cx);
}

// The best grid for n integers; lane l brings those of features 2 l and 2 l + 1, zeros past the last. A lane has a
// start; the best one's further passes are the warp's.
__device__ inline Grid fit(float x0, float x1, int n, float sum_x, float low, float high) {
  const int lane = threadIdx.x % 32;
  const float range = high - low, i = static_cast<float>(lane % 4), j = static_cast<float>(lane / 4);
  Grid g{__fdiv_rn(range * (50 - 2 * i - j), 750.f), __fdiv_rn(50 * low + 2 * i * range, 50.f), -1};
  bool goes_on = true;
  for (int pass = 0; pass < kInt4StartPasses; ++pass) {
    const float inverse = __fdiv_rn(1.f, g.step);
    Sums s;
#pragma unroll 8
    for (int k = 0; k < n / 2; ++k) {
      add_code(s, __shfl_sync(kAll, x0, k), g, inverse);
      add_code(s, __shfl_sync(kAll, x1, k), g, inverse);
    }
    goes_on = goes_on && solve(s, sum_x, n, g);
  }
  int best = lane;
  float gain = g.gain;
  for (int other = 16; other > 0; other /= 2) {
    const float theirs = __shfl_xor_sync(kAll, gain, other);
    const int whose = __shfl_xor_sync(kAll, best, other);
    if (theirs > gain || (theirs == gain && whose < best)) gain = theirs, best = whose;
  }
  g = {__shfl_sync(kAll, g.step, best), __shfl_sync(kAll, g.zero, best), gain};
  for (int pass = 0; gain >= 0 && pass < kInt4Refinements; ++pass) {
    Sums s;
    const float inverse = __fdiv_rn(1.f, g.step);
    if (2 * lane < n) add_code(s, x0, g, inverse), add_code(s, x1, g, inverse);
    const auto sum = [](float v) { return static_cast<float>(__reduce_add_sync(kAll, static_cast<int>(v))); };
    s = {sum(s.c), sum(s.cc), sum(s.cx)};
    if (!solve(s, sum_x, n, g)) break;
  }
  return g;
}

// Scale and center of a group as one word, the scale in its low half.
__device__ inline uint32_t scale_of_group(float v0, float v1, int n) {
  float most = fmaxf(fabsf(v0), fabsf(v1));
  for (int other = 16; other > 0; other /= 2) most = fmaxf(most, __shfl_xor_sync(kAll, most, other));
  if (__any_sync(kAll, !isfinite(v0) || !isfinite(v1))) return 0x7fc07fc0u;
  const float up = __fdiv_rn(2047.f, most);
  if (most == 0 || !isfinite(up)) return 0;
  const float x0 = rintf(__fmul_rn(v0, up)), x1 = rintf(__fmul_rn(v1, up));
  float low = fminf(fminf(x0, x1), 0.f), high = fmaxf(fmaxf(x0, x1), 0.f);
  for (int other = 16; other > 0; other /= 2) {
    low = fminf(low, __shfl_xor_sync(kAll, low, other));
    high = fmaxf(high, __shfl_xor_sync(kAll, high, other));
  }
  const auto sum = static_cast<float>(__reduce_add_sync(kAll, static_cast<int>(x0) + static_cast<int>(x1)));
  const Grid g = fit(x0, x1, n, sum, low, high);
  const __nv_bfloat16 scale = __float2bfloat16_rn(__fdiv_rn(g.step, up)),
                      center = __float2bfloat16_rn(__fdiv_rn(__fadd_rn(g.zero, 8 * g.step), up));
  return __bfloat16_as_ushort(scale) | static_cast<uint32_t>(__bfloat16_as_ushort(center)) << 16;
}

__device__ __forceinline__ float scale_of(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float center_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// The codes of a row of d values (even), and the word of each of its groups; a warp's work.
template <class T>
__device__ void store_row(const T* x, uint8_t* codes, uint32_t* scales, int d) {
  const int lane = threadIdx.x % 32;
  for (int begin = 0; begin < d; begin += kInt4Group) {
    const int n = min(static_cast<int>(kInt4Group), d - begin), at = begin + 2 * lane;
    const bool there = 2 * lane < n;
    const float v0 = there ? to_f32(x[at]) : 0.f, v1 = there ? to_f32(x[at + 1]) : 0.f;
    const uint32_t word = scale_of_group(v0, v1, n);
    const float scale = scale_of(word), center = center_of(word);
    const float inverse = scale > 0 ? __fdiv_rn(1.f, scale) : 0.f;
    const auto code = [&](float v) {
      const float c = rintf(__fmul_rn(__fsub_rn(v, center), inverse));
      return c > -8 ? static_cast<uint32_t>(fminf(c, 7.f) + 8) : 0u;
    };
    if (there) codes[at / 2] = static_cast<uint8_t>(code(v0) | code(v1) << 4);
    if (lane == 0) scales[begin / kInt4Group] = word;
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
