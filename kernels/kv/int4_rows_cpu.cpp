// The fit of a group, all starts side by side: a start is a lane of the loops.
#include "kernels/kv/int4_rows.h"

#include <algorithm>
#include <cmath>

#include "src/core/hot.h"

namespace fewbit::cpu {
namespace {

constexpr float kMostCode = 15, kHalfCodes = 8;
// Added and taken off again, it rounds a number below 2^22 to an integer, to nearest even.
constexpr float kRounder = 12582912;

// A grid and what its last pass found: how much of the sum of squares it explains; negative: nothing.
struct Grid {
  float step = 0, zero = 0, gain = -1;
};
// Sums over the codes c of a group and its integers X.
struct Sums {
  float c = 0, cc = 0, cx = 0;
};

// Least squares for the codes that have these sums. False, and the grid as it was, where the codes are all equal.
bool solve(const Sums& sums, float sum_x, int64_t n, Grid& grid) {
  const auto c = static_cast<int64_t>(sums.c), cc = static_cast<int64_t>(sums.cc), cx = static_cast<int64_t>(sums.cx);
  const auto x = static_cast<int64_t>(sum_x);
  const int64_t along = n * cx - c * x, spread = n * cc - c * c;
  if (spread <= 0 || along <= 0) return false;
  const auto a = static_cast<float>(along), d = static_cast<float>(spread);
  grid = {a / d, static_cast<float>(x * cc - c * cx) / d, a * a / d};
  return true;
}

struct Starts {
  float step[kInt4Starts], zero[kInt4Starts];
  float c[kInt4Starts], cc[kInt4Starts], cx[kInt4Starts];
};

FEWBIT_HOT void sum_starts(const float* x, int64_t n, Starts& s) {
  float inverse[kInt4Starts];
  for (int k = 0; k < kInt4Starts; ++k) inverse[k] = 1 / s.step[k], s.c[k] = s.cc[k] = s.cx[k] = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int k = 0; k < kInt4Starts; ++k) {
      const float at = (x[i] - s.zero[k]) * inverse[k];
      const float low = at > 0 ? at : 0, code = ((low < kMostCode ? low : kMostCode) + kRounder) - kRounder;
      s.c[k] += code;
      s.cc[k] += code * code;
      s.cx[k] += code * x[i];
    }
}

FEWBIT_HOT Sums sum_one(const float* x, int64_t n, const Grid& g) {
  const float inverse = 1 / g.step;
  Sums s;
  for (int64_t i = 0; i < n; ++i) {
    const float at = (x[i] - g.zero) * inverse;
    const float low = at > 0 ? at : 0, code = ((low < kMostCode ? low : kMostCode) + kRounder) - kRounder;
    s.c += code;
    s.cc += code * code;
    s.cx += code * x[i];
  }
  return s;
}

// The best grid for integers x in [low, high].
Grid fit(const float* x, int64_t n, float sum_x, float low, float high) {
  const float range = high - low;
  Starts starts;
  Grid grids[kInt4Starts];
  bool goes_on[kInt4Starts];
  for (int k = 0; k < kInt4Starts; ++k) {
    const int low_step = k % 4, range_step = k / 4;
    const auto i = static_cast<float>(low_step), j = static_cast<float>(range_step);
    grids[k] = {range * (50 - 2 * i - j) / 750, (50 * low + 2 * i * range) / 50, -1};
    goes_on[k] = true;
  }
  for (int pass = 0; pass < kInt4StartPasses; ++pass) {
    for (int k = 0; k < kInt4Starts; ++k) starts.step[k] = grids[k].step, starts.zero[k] = grids[k].zero;
    sum_starts(x, n, starts);
    for (int k = 0; k < kInt4Starts; ++k)
      goes_on[k] = goes_on[k] && solve({starts.c[k], starts.cc[k], starts.cx[k]}, sum_x, n, grids[k]);
  }
  Grid best = grids[0];
  for (int k = 1; k < kInt4Starts; ++k)
    if (grids[k].gain > best.gain) best = grids[k];
  if (best.gain < 0) return best;  // all values equal: the whole range
  for (int pass = 0; pass < kInt4Refinements; ++pass)
    if (!solve(sum_one(x, n, best), sum_x, n, best)) break;
  return best;
}

Int4Scale scale_of_group(const float* x, int64_t n) {
  float most = 0, infinite = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i])), infinite += x[i] - x[i];
  if (infinite != 0) return {bf16(NAN), bf16(NAN)};
  const float up = 2047 / most;
  if (most == 0 || !std::isfinite(up)) return {bf16(0.f), bf16(0.f)};
  float whole[kInt4Group], low = 0, high = 0, sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    whole[i] = std::nearbyint(x[i] * up);
    low = std::min(low, whole[i]), high = std::max(high, whole[i]);
    sum += whole[i];
  }
  const Grid g = fit(whole, n, sum, low, high);
  return {bf16(g.step / up), bf16((g.zero + kHalfCodes * g.step) / up)};
}

}  // namespace

void int4_row(const float* x, int64_t d, uint8_t* codes, Int4Scale* scales) {
  for (int64_t begin = 0; begin < d; begin += kInt4Group) {
    const int64_t n = std::min(kInt4Group, d - begin);
    const Int4Scale s = scales[begin / kInt4Group] = scale_of_group(x + begin, n);
    const float scale = s.scale, center = s.center, inverse = scale > 0 ? 1 / scale : 0;
    const auto code = [&](float v) {
      const float at = std::nearbyint((v - center) * inverse);
      return static_cast<uint8_t>(at > -kHalfCodes ? std::min(at, kHalfCodes - 1) + kHalfCodes : 0);
    };
    for (int64_t i = begin; i < begin + n; i += 2)
      codes[i / 2] = static_cast<uint8_t>(code(x[i]) | code(x[i + 1]) << 4);
  }
}

FEWBIT_HOT void widen_int4_row(const uint8_t* codes, const Int4Scale* scales, float* y, int64_t d) {
  for (int64_t begin = 0; begin < d; begin += kInt4Group) {
    const float scale = scales[begin / kInt4Group].scale, center = scales[begin / kInt4Group].center;
    const int64_t end = begin + kInt4Group < d ? begin + kInt4Group : d;
    for (int64_t i = begin; i < end; i += 2) {
      const int two = codes[i / 2];
      y[i] = center + static_cast<float>((two & 15) - 8) * scale;
      y[i + 1] = center + static_cast<float>((two >> 4) - 8) * scale;
    }
  }
}

}  // namespace fewbit::cpu
