// Searches of sixteen blocks at once. Compiled without fused multiply-adds, as block_search.cpp is: the sums
// of a lane are those of a block on its own, bit for bit.
#include "formats/gguf/lanes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/gguf/lane_math.h"

namespace fewbit::gguf {
namespace {

// What a regular block's extremes and the sums over it stay between.
constexpr float kLeastRange = 0x1p-40f, kMostValue = 0x1p16f, kLeastSum = 0x1p-80f, kMostSum = 0x1p80f;

constexpr int kCount = kCandidates + 1;

using Doubles = double[kLanes];
using Floats = float[kLanes];

// The first of the least values of every lane and the last of the greatest, as std::minmax_element has it for zeros.
FEWBIT_HOT void extremes_of(const Lanes& s, float* low, float* high) {
  Floats least, greatest;
  for (int l = 0; l < kLanes; ++l) least[l] = greatest[l] = s.x[0][l];
  for (int i = 1; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      least[l] = s.x[i][l] < least[l] ? s.x[i][l] : least[l];
      greatest[l] = s.x[i][l] >= greatest[l] ? s.x[i][l] : greatest[l];
    }
  for (int l = 0; l < kLanes; ++l) low[l] = least[l], high[l] = greatest[l];
}

void largest_of(const Lanes& s, float* largest) {
  for (int l = 0; l < kLanes; ++l) largest[l] = std::max(-s.low[l], s.high[l]);
}

// --- scales alone

// As scale_sums(), for codes of any size and both signs alike.
FEWBIT_HOT void even_sums(const Magnitudes& m, const float* factor, double* xc, double* cc) {
  Doubles sx = {}, sc = {};
  const float most = m.both / 2;
  for (int i = 0; i < m.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const double c = round_even(at_most(m.x[i][l] * factor[l], most)), wc = m.wide_weight[i][l] * c;
      sx[l] += wc * m.wide_x[i][l];
      sc[l] += wc * c;
    }
  for (int l = 0; l < kLanes; ++l) xc[l] = sx[l], cc[l] = sc[l];
}

// Per lane the candidate that took most off the energy, the first of equals.
struct Best {
  Doubles gain, xc, cc;
  Floats flip;
  Best() {
    std::fill_n(gain, kLanes, -1);
    std::fill_n(xc, kLanes, 0);
    std::fill_n(cc, kLanes, 0);
    std::fill_n(flip, kLanes, 0.f);
  }
};

FEWBIT_HOT void keep_best(const double* xc, const double* cc, const float* flip, Best& best) {
  for (int l = 0; l < kLanes; ++l) {
    const double gain = xc[l] * xc[l] / cc[l];  // a NaN where no code is other than 0, which is above nothing
    const bool better = gain > best.gain[l];
    best.gain[l] = better ? gain : best.gain[l];
    best.xc[l] = better ? xc[l] : best.xc[l];
    best.cc[l] = better ? cc[l] : best.cc[l];
    best.flip[l] = better ? flip[l] : best.flip[l];
  }
}

FEWBIT_HOT void take_magnitudes(const Lanes& s, float low, float high, Magnitudes& m) {
  m.n = s.n;
  m.both = high - low;
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const float x = s.x[i][l];
      m.x[i][l] = std::fabs(x);
      m.wide_x[i][l] = std::fabs(x);
      m.wide_weight[i][l] = s.weight[i][l];
      m.most[i][l] = x > 0 ? high : -low;
      m.other[i][l] = x > 0 ? -low : high;
    }
}

FEWBIT_HOT void take_factors(const float* first, Floats* factors) {
  for (int t = 0; t < kCount; ++t)
    for (int l = 0; l < kLanes; ++l) factors[t][l] = 1 / (first[l] * candidate(t));
}

// Bit t of [lane]: that candidate t may be the best of its lane.
struct Survivors {
  uint64_t negative[kLanes] = {}, positive[kLanes] = {};
};

FEWBIT_HOT void mark(const Floats* gains, const float* bound, uint64_t* found) {
  uint32_t bits[kLanes] = {};  // of all candidates but the last
  for (int t = 0; t < kCandidates; ++t)
    for (int l = 0; l < kLanes; ++l) bits[l] |= gains[t][l] >= bound[l] ? 1u << t : 0u;
  for (int l = 0; l < kLanes; ++l)
    found[l] = bits[l] | (gains[kCandidates][l] >= bound[l] ? uint64_t{1} << kCandidates : 0);
}

// Each of the two sums of approximate_gains() is the outcome of at most r = n / kGainParts + 3 roundings in a row and
// has no negative terms, so it is off by r units of 2^-24 at most, and the gain by 3 r + 2. A candidate that is best in
// exact sums lies within twice that of the best seen; a tenth more pays for the terms of second order.
Survivors survivors_of(Lanes& s, const Magnitudes& m, const Floats* factors) {
  alignas(64) Floats positive[kCount], negative[kCount], bound;
  Gains gains = {};
  std::fill_n(gains.least, kLanes, kMostSum);
  for (int t = 0; t < kCount; ++t) approximate_gains(m, s.weight, factors[t], positive[t], negative[t], gains);
  const int in_a_row = s.n / kGainParts + 3;
  const auto roundings = static_cast<float>(in_a_row);
  for (int l = 0; l < kLanes; ++l) {
    s.regular[l] = s.regular[l] && gains.least[l] > kLeastSum && gains.greatest[l] < kMostSum;
    bound[l] = gains.best[l] * (1 - 2.2f * (3 * roundings + 2) * 0x1p-24f);
  }
  Survivors found;
  mark(negative, bound, found.negative);
  mark(positive, bound, found.positive);
  return found;
}

// Takes the next survivor of every lane: its factor and sign. Lanes without one repeat their last, which changes
// nothing. False when no lane has one.
bool next_survivors(Survivors& left, const Floats* factors, float* factor, float* flip) {
  bool any = false;
  for (int l = 0; l < kLanes; ++l) {
    uint64_t& of_sign = left.negative[l] ? left.negative[l] : left.positive[l];
    if (!of_sign) continue;
    any = true;
    factor[l] = factors[std::countr_zero(of_sign)][l];
    flip[l] = &of_sign == &left.negative[l] ? 1.f : 0.f;
    of_sign &= of_sign - 1;
  }
  return any;
}

}  // namespace

void load_lanes(const float* x, const float* weight, int n, int count, bool affine, Lanes& s) {
  s.n = n;
  s.count = count;
  for (int l = 0; l < kLanes; ++l) {
    const float *from = x + std::min(l, count - 1) * n, *w = weight + std::min(l, count - 1) * n;
    for (int i = 0; i < n; ++i) s.x[i][l] = from[i], s.weight[i][l] = w[i];
  }
  extremes_of(s, s.low, s.high);
  for (int l = 0; l < kLanes; ++l) {
    const float largest = std::max(-s.low[l], s.high[l]), range = affine ? s.high[l] - s.low[l] : largest;
    s.regular[l] = range >= kLeastRange && largest <= kMostValue;
    if (s.regular[l]) continue;
    for (int i = 0; i < n; ++i) s.x[i][l] = static_cast<float>(i), s.weight[i][l] = 1;
    s.low[l] = 0;
    s.high[l] = static_cast<float>(n - 1);
  }
}

void search_symmetric(Lanes& s, int low, int high, float* scale) {
  Floats first, factors[kCount], factor = {}, flip = {};
  largest_of(s, first);
  for (int l = 0; l < kLanes; ++l) first[l] /= static_cast<float>(-low);
  take_factors(first, factors);
  Magnitudes m;
  take_magnitudes(s, static_cast<float>(low), static_cast<float>(high), m);
  Best best;
  Doubles xc, cc;
  if (low == -high) {  // both signs give the same codes: the negative one, tried first, wins
    std::fill_n(flip, kLanes, 1.f);
    for (const Floats& each : factors) {
      even_sums(m, each, xc, cc);
      keep_best(xc, cc, flip, best);
    }
  } else {
    Survivors left = survivors_of(s, m, factors);
    while (next_survivors(left, factors, factor, flip)) {
      scale_sums(m, factor, flip, xc, cc);
      keep_best(xc, cc, flip, best);
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    const auto found = static_cast<float>(best.xc[l] / best.cc[l]);
    scale[l] = best.gain[l] < 0 ? first[l] : best.flip[l] != 0 ? -found : found;
  }
}

// --- uneven levels

namespace {

FEWBIT_HOT void level_sums(const Lanes& s, const LevelSteps& levels, const float* factor, double* xc, double* cc) {
  Doubles sx = {}, sc = {};
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const double c = level_at(levels, s.x[i][l] * factor[l]), wc = s.weight[i][l] * c;
      sx[l] += wc * s.x[i][l];
      sc[l] += wc * c;
    }
  for (int l = 0; l < kLanes; ++l) xc[l] = sx[l], cc[l] = sc[l];
}

}  // namespace

void search_levels(const Lanes& s, std::span<const float> levels, float* scale) {
  Floats largest, factor, flip = {};
  largest_of(s, largest);
  const LevelSteps steps(levels);
  Best best;
  Doubles xc, cc;
  for (const float sign : {-1.f, 1.f})
    for (int t = 0; t <= kCandidates; ++t) {
      for (int l = 0; l < kLanes; ++l) factor[l] = sign * -levels.front() / largest[l] / candidate(t);
      level_sums(s, steps, factor, xc, cc);
      keep_best(xc, cc, flip, best);
    }
  for (int l = 0; l < kLanes; ++l)
    scale[l] = best.gain[l] < 0 ? largest[l] / levels.front() : static_cast<float>(best.xc[l] / best.cc[l]);
}

// --- scales and minima

namespace {

FEWBIT_HOT void sums_without_codes(const Lanes& s, const float* min, Above& a) {
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const double w = s.weight[i][l], wx = w * s.x[i][l];
      a.above[i][l] = s.x[i][l] - min[l];
      a.weight[i][l] = w;
      a.wx[i][l] = wx;
      a.w[l] += w;
      a.x[l] += wx;
      a.xx[l] += wx * s.x[i][l];
    }
}

FEWBIT_HOT void candidate_inverses(const float* range, float most, int t, float* inverse) {
  const float relative = candidate(t);
  for (int l = 0; l < kLanes; ++l) inverse[l] = 1 / (range[l] / most * relative);
}

// fit() of block_search.cpp, and the comparison after it.
FEWBIT_HOT void keep_fit(const Above& a, const CodeSums& s, double not_positive, double* least, float* scale,
                         float* min) {
  for (int l = 0; l < kLanes; ++l) {
    const double w = a.w[l], x = a.x[l], c = s.c[l], cc = s.cc[l], xc = s.xc[l];
    const double det = w * cc - c * c, of_d = w * xc - x * c, of_m = cc * x - c * xc;
    // det is above 0, so the sign of the minimum is that of of_m.
    const bool alone = !(det > 0) | (of_m * not_positive > 0), some = cc > 0;
    const double d = (alone ? (some ? xc : 0) : of_d) / (alone ? (some ? cc : 1) : det);
    const double m = (alone ? 0 : of_m) / (alone ? 1 : det);
    const double error = a.xx[l] - 2 * (d * xc + m * x) + d * d * cc + 2 * d * m * c + m * m * w;
    const auto found = static_cast<float>(d), found_min = static_cast<float>(m);
    const double mine = found > 0 ? error : HUGE_VAL;
    const bool better = mine < least[l];
    least[l] = better ? mine : least[l];
    scale[l] = better ? found : scale[l];
    min[l] = better ? found_min : min[l];
  }
}

}  // namespace

void search_affine(Lanes& s, int top, MinSign sign, float* scale, float* min) {
  Floats low, range, inverse;
  Doubles least;
  const auto most = static_cast<float>(top);
  for (int l = 0; l < kLanes; ++l) {
    low[l] = sign == MinSign::not_positive ? std::min(s.low[l], 0.f) : s.low[l];
    range[l] = s.high[l] - low[l];
    scale[l] = range[l] / most;
    min[l] = low[l];
    least[l] = HUGE_VAL;
  }
  Above a;
  sums_without_codes(s, low, a);
  for (int t = 0; t <= kCandidates; ++t) {
    candidate_inverses(range, most, t, inverse);
    CodeSums sums;
    affine_sums(a, s.n, most, inverse, sums);
    keep_fit(a, sums, sign == MinSign::not_positive ? 1 : 0, least, scale, min);
  }
}

}  // namespace fewbit::gguf
