// Sixteen blocks of q4_0, q4_1, q5_0, q5_1 or q8_0 at once: what the encoders of simple_blocks.cpp do, which are the
// rule. Compiled without fused multiply-adds, as those are.
#include <algorithm>
#include <cmath>

#include "formats/gguf/block_codes.h"
#include "formats/gguf/lane_math.h"
#include "formats/gguf/lanes.h"
#include "src/core/half.h"

namespace fewbit::gguf {
namespace {

using Doubles = double[kLanes];
using Floats = float[kLanes];

// A grid per lane: decoded = d c + m, where c is a code less `offset`.
struct Grid {
  Floats d, m = {};
  LaneTable codes;
};
// Of a type: codes low … high, stored with `offset` added.
struct Range {
  float low, high, offset;
  bool affine;
};

Range range_of(const BlockType& t) {
  const auto top = static_cast<float>((1 << t.grid->bits) - 1), middle = static_cast<float>(1 << (t.grid->bits - 1));
  if (!t.grid->symmetric) return {0, top, 0, true};
  if (t.grid->bits == 8) return {1 - middle, middle - 1, middle, false};
  return {-middle, middle - 1, middle, false};
}

FEWBIT_HOT void inverses_of(const float* d, float* inverse) {
  for (int l = 0; l < kLanes; ++l) {
    const float one = d[l] != 0 ? 1.f : 0.f, divisor = d[l] != 0 ? d[l] : 1.f;
    inverse[l] = one / divisor;
  }
}

FEWBIT_HOT void nearest_codes(const Lanes& s, const Range& r, const float* inverse, Grid& g) {
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l)
      g.codes[i][l] = round_even(at_least(at_most((s.x[i][l] - g.m[l]) * inverse[l], r.high), r.low));
}

// The plain rule of 4 and 5 bits: half a step up, then down to the integer.
FEWBIT_HOT void cut_codes(const Lanes& s, const Range& r, const float* least, const float* inverse, LaneTable& codes) {
  const float half = r.offset + 0.5f, top = r.high + r.offset;
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const auto cut = static_cast<float>(static_cast<int>((s.x[i][l] - least[l]) * inverse[l] + half));
      codes[i][l] = at_most(cut, top) - r.offset;
    }
}

// The plain rule of 8 bits: to the nearest, halves away from zero.
FEWBIT_HOT void away_codes(const Lanes& s, const float* inverse, LaneTable& codes) {
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const float v = s.x[i][l] * inverse[l], size = std::fabs(v);
      const auto whole = static_cast<float>(static_cast<int>(size));
      const float rounded = whole + (size - whole >= 0.5f ? 1.f : 0.f);
      codes[i][l] = v < 0 ? -rounded : rounded;
    }
}

FEWBIT_HOT void grid_errors(const Lanes& s, const Grid& g, double* error) {
  Doubles sum = {};
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const float value = g.d[l] * g.codes[i][l] + g.m[l];
      const double e = static_cast<double>(s.x[i][l]) - static_cast<double>(value);
      sum[l] += s.weight[i][l] * e * e;
    }
  for (int l = 0; l < kLanes; ++l) error[l] = sum[l];
}

// The first of the values with the largest magnitude, per lane.
FEWBIT_HOT void extreme_of(const Lanes& s, float* extreme) {
  Floats most;
  for (int l = 0; l < kLanes; ++l) most[l] = s.x[0][l];
  for (int i = 1; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) most[l] = std::fabs(most[l]) < std::fabs(s.x[i][l]) ? s.x[i][l] : most[l];
  for (int l = 0; l < kLanes; ++l) extreme[l] = most[l];
}

void round_scales(Grid& g) {
  for (int l = 0; l < kLanes; ++l) g.d[l] = round_to_f16(g.d[l]), g.m[l] = round_to_f16(g.m[l]);
}

void plain_grid(const Lanes& s, const Range& r, Grid& g) {
  Floats extreme, inverse;
  extreme_of(s, extreme);
  for (int l = 0; l < kLanes; ++l) {
    if (r.affine)
      g.d[l] = (s.high[l] - s.low[l]) / r.high, g.m[l] = s.low[l];
    else
      g.d[l] = r.low == -r.high ? std::fabs(extreme[l]) / r.high : extreme[l] / r.low;
  }
  inverses_of(g.d, inverse);
  if (r.low == -r.high)
    away_codes(s, inverse, g.codes);
  else
    cut_codes(s, r, g.m, inverse, g.codes);
  round_scales(g);
}

void searched_grid(Lanes& s, const Range& r, Grid& g) {
  if (r.affine)
    search_affine(s, static_cast<int>(r.high), MinSign::any, g.d, g.m);
  else
    search_symmetric(s, static_cast<int>(r.low), static_cast<int>(r.high), g.d);
  round_scales(g);
  Floats inverse;
  inverses_of(g.d, inverse);
  nearest_codes(s, r, inverse, g);
}

BlockCodes codes_of(const Grid& g, int lane, float offset) {
  BlockCodes c{.d = g.d[lane], .m = g.m[lane]};
  for (int i = 0; i < kSimpleBlock; ++i) c.codes[i] = static_cast<uint8_t>(static_cast<int>(g.codes[i][lane] + offset));
  return c;
}

}  // namespace

void encode_simple_lanes(const BlockType& type, const float* x, const float* weight, int count, uint8_t* to) {
  const Range r = range_of(type);
  Lanes s;
  load_lanes(x, weight, kSimpleBlock, count, r.affine, s);
  Grid found, plain;
  searched_grid(s, r, found);
  plain_grid(s, r, plain);
  Doubles found_error, plain_error;
  grid_errors(s, found, found_error);
  grid_errors(s, plain, plain_error);
  for (int l = 0; l < count; ++l, to += type.bytes) {
    if (!s.regular[l])
      type.encode(x + l * kSimpleBlock, weight + l * kSimpleBlock, to);
    else
      store_codes(type, codes_of(found_error[l] < plain_error[l] ? found : plain, l, r.offset), to);
  }
}

}  // namespace fewbit::gguf
