// The encoders of all types that can be opened (open_block.h).
#include "formats/gguf/open_block.h"

#include <algorithm>
#include <cmath>

#include "formats/gguf/open_search.h"

namespace fewbit::gguf {
namespace {

// A block in work: what it is to hold, and how far what it holds is from that.
struct Found {
  OpenBlock block;
  double error = HUGE_VAL;
};

float largest_magnitude(const float* x, int n) {
  return *std::max_element(x, x + n, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

// Codes of one sub-block on a grid without a minimum.
void level_codes(const OpenForm& f, const float* x, float scale, int* codes) {
  if (f.even) {
    const int low = static_cast<int>(f.levels.front());
    symmetric_codes(x, f.sub, scale, low, static_cast<int>(f.levels.back()), codes);
    for (int i = 0; i < f.sub; ++i) codes[i] -= low;
    return;
  }
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < f.sub; ++i) codes[i] = nearest_level(f.levels, x[i] * inverse);
}

// The scale of one sub-block that leaves the least error, alone.
float wanted_scale(const OpenForm& f, const float* x, const float* weight) {
  if (f.even)
    return search_symmetric(x, weight, f.sub, static_cast<int>(f.levels.front()), static_cast<int>(f.levels.back()));
  return search_levels(x, weight, f.sub, f.levels);
}

// The error of sub-block j under the grid {d scale, -dmin min}, with its codes.
double sub_error(const Source& s, int j, Affine grid, int* codes) {
  const float *x = s.values(j), *w = s.weights(j);
  if (s.form.most_min > 0)
    affine_codes(x, s.form.sub, grid, s.top(), codes);
  else
    level_codes(s.form, x, grid.scale, codes);
  double sum = 0;
  for (int i = 0; i < s.form.sub; ++i) {
    const double e = x[i] - (grid.scale * s.form.levels[static_cast<size_t>(codes[i])] + grid.min);
    sum += w[i] * e * e;
  }
  return sum;
}

}  // namespace

int nearest_integer(float v, float unit, int least, int most) {
  return unit != 0 ? std::clamp(static_cast<int>(std::lrintf(v / unit)), least, most) : std::clamp(0, least, most);
}

namespace {

// Integer scales (and minima) for given d and dmin: of the nearest ones and their neighbours (`reach` apart) those that
// leave the least error, with the codes that belong to them.
void choose_sub_scales(const Source& s, const Affine* wanted, int reach, Found& found) {
  const OpenForm& f = s.form;
  OpenBlock& b = found.block;
  found.error = 0;
  for (int j = 0; j < s.count(); ++j) {
    const int scale = nearest_integer(wanted[j].scale, b.d, f.least_scale, f.most_scale);
    const int min = f.most_min > 0 && b.dmin > 0 ? nearest_integer(-wanted[j].min, b.dmin, 0, f.most_min) : 0;
    const int around = f.most_min > 0 ? reach : 0;
    double least = HUGE_VAL;
    int codes[kMostElements];
    for (int a = std::max(scale - reach, f.least_scale); a <= std::min(scale + reach, f.most_scale); ++a)
      for (int m = std::max(min - around, 0); m <= std::min(min + around, f.most_min); ++m) {
        const Affine grid{b.d * static_cast<float>(a), -(b.dmin * static_cast<float>(m))};
        const double error = sub_error(s, j, grid, codes);
        if (error >= least) continue;
        least = error;
        b.scale[j] = a;
        b.min[j] = m;
        for (int i = 0; i < f.sub; ++i) b.codes[j * f.sub + i] = static_cast<uint8_t>(codes[i]);
      }
    found.error += least;
  }
}

}  // namespace

bool refit(const Source& s, OpenBlock& block) {
  double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
  for (int i = 0; i < s.form.elements; ++i) {
    const int j = i / s.form.sub;
    const double a = block.scale[j] * static_cast<double>(s.form.levels[block.codes[i]]);
    const double b = -static_cast<double>(block.min[j]), v = s.weight[i];
    aa += v * a * a;
    ab += v * a * b;
    bb += v * b * b;
    xa += v * s.x[i] * a;
    xb += v * s.x[i] * b;
  }
  if (!(aa > 0)) return false;
  const double det = aa * bb - ab * ab;
  const bool both = s.form.most_min > 0 && det > 1e-9 * aa * bb;
  const double d = both ? (bb * xa - ab * xb) / det : xa / aa, dmin = both ? (aa * xb - ab * xa) / det : 0;
  if (s.form.most_min > 0 && (!(d > 0) || dmin < 0)) return false;
  block.d = round_to_f16(static_cast<float>(d));
  block.dmin = round_to_f16(static_cast<float>(dmin));
  return true;
}

void common_scales(const Source& s, const Affine* wanted, OpenBlock& b) {
  float scale = 0, min = 0;
  for (int j = 0; j < s.count(); ++j) {
    if (std::fabs(wanted[j].scale) > std::fabs(scale)) scale = wanted[j].scale;
    min = std::max(min, -wanted[j].min);
  }
  const int reach = s.form.least_scale < 0 ? s.form.least_scale : s.form.most_scale;
  b.d = round_to_f16(scale / static_cast<float>(reach));
  if (s.form.most_min > 0) b.dmin = round_to_f16(min / static_cast<float>(s.form.most_min));
}

Affine plain_scale(const Source& s, int j) {
  const OpenForm& f = s.form;
  const float* sub = s.values(j);
  if (f.most_min == 0) return {largest_magnitude(sub, f.sub) / f.levels.front(), 0};
  const auto [low, high] = std::minmax_element(sub, sub + f.sub);
  const float min = std::min(*low, 0.f);
  return {(std::max(*high, min) - min) / static_cast<float>(s.top()), min};
}

namespace {

Found plain_block(const OpenForm& f, const float* x) {
  static constexpr float kEqual[kMostElements] = {};
  const Source s{f, x, kEqual};
  Affine wanted[kMostSubBlocks];
  for (int j = 0; j < s.count(); ++j) wanted[j] = plain_scale(s, j);
  Found found;
  common_scales(s, wanted, found.block);
  choose_sub_scales(s, wanted, 0, found);
  return found;
}

Found searched_block(const OpenForm& f, const float* x, const float* weight) {
  const Source s{f, x, weight};
  Affine wanted[kMostSubBlocks];
  for (int j = 0; j < s.count(); ++j)
    wanted[j] = f.most_min > 0 ? search_affine(s.values(j), s.weights(j), f.sub, s.top(), MinSign::not_positive)
                               : Affine{wanted_scale(f, s.values(j), s.weights(j)), 0};
  Found best, now;
  common_scales(s, wanted, now.block);
  for (int round = 0; round < kRefitRounds; ++round) {
    choose_sub_scales(s, wanted, 1, now);
    if (now.error >= best.error) break;
    best = now;
    if (!refit(s, now.block)) break;
  }
  return best;
}

}  // namespace

void decode_open(const OpenForm& f, const uint8_t* block, float* values) {
  const OpenBlock b = f.load(block);
  for (int i = 0; i < f.elements; ++i) {
    const int j = i / f.sub;
    const float value = b.d * static_cast<float>(b.scale[j]) * f.levels[b.codes[i]];
    values[i] = f.most_min > 0 ? value - b.dmin * static_cast<float>(b.min[j]) : value;
  }
}

void encode_open_plain(const BlockType& type, const float* x, uint8_t* block) {
  type.open->store(plain_block(*type.open, x).block, block);
}

void encode_open(const BlockType& type, const float* x, const float* weight, uint8_t* block) {
  uint8_t found[kMostBlockBytes];
  type.open->store(searched_block(*type.open, x, weight).block, found);
  encode_open_plain(type, x, block);
  keep_better(type.decode, type.open->elements, x, weight, found, type.bytes, block);
}

}  // namespace fewbit::gguf
