#include "formats/gguf/block_search.h"

#include <algorithm>
#include <cmath>

#include "formats/gguf/open_block.h"

namespace fewbit::gguf {
namespace {

int nearest(float v, int low, int high) {
  return static_cast<int>(std::lrintf(std::clamp(v, static_cast<float>(low), static_cast<float>(high))));
}

struct Sums {  // weighted sums over a block
  double w = 0, x = 0, c = 0, cc = 0, xc = 0, xx = 0;
};

// The least-squares scale and minimum of given codes; `error` receives what they leave.
Affine fit(const Sums& s, MinSign sign, double* error) {
  const double det = s.w * s.cc - s.c * s.c;
  double scale = 0, min = 0;
  if (det > 0) {
    scale = (s.w * s.xc - s.x * s.c) / det;
    min = (s.cc * s.x - s.c * s.xc) / det;
  }
  if (det <= 0 || (sign == MinSign::not_positive && min > 0)) {
    min = 0;
    scale = s.cc > 0 ? s.xc / s.cc : 0;
  }
  *error = s.xx - 2 * (scale * s.xc + min * s.x) + scale * scale * s.cc + 2 * scale * min * s.c + min * min * s.w;
  return {static_cast<float>(scale), static_cast<float>(min)};
}

}  // namespace

Affine search_affine(const float* x, const float* weight, int n, int top, MinSign sign) {
  auto [low, high] = std::minmax_element(x, x + n);
  const float min = sign == MinSign::not_positive ? std::min(*low, 0.f) : *low;
  const float range = *high - min;
  if (!(range > 0)) return {0, min};
  Affine best{range / static_cast<float>(top), min};
  double least = HUGE_VAL;
  for (int t = 0; t <= kCandidates; ++t) {
    const float scale = range / static_cast<float>(top) * candidate(t);
    const float inverse = 1 / scale;
    Sums s;
    for (int i = 0; i < n; ++i) {
      const double c = nearest((x[i] - min) * inverse, 0, top), w = weight[i], wx = w * x[i];
      s.w += w;
      s.x += wx;
      s.c += w * c;
      s.cc += w * c * c;
      s.xc += wx * c;
      s.xx += wx * x[i];
    }
    double error = 0;
    const Affine found = fit(s, sign, &error);
    if (error < least && found.scale > 0) {
      least = error;
      best = found;
    }
  }
  return best;
}

namespace {

// The scale s of x ~ s * level with the least sum weight (x - s * level)^2, over levels that the candidates
// sign * inverse(t) for both signs give; `otherwise` where they are all zeros.
template <class Inverse, class Level>
float best_scale(const float* x, const float* weight, int n, float otherwise, Inverse inverse, Level level) {
  float best = otherwise;
  double most = -1;  // what a candidate takes off the energy: (sum w x c)^2 / sum w c^2
  for (const float sign : {-1.f, 1.f})
    for (int t = 0; t <= kCandidates; ++t) {
      const float factor = inverse(sign, t);
      double xc = 0, cc = 0;
      for (int i = 0; i < n; ++i) {
        const double c = level(x[i] * factor), wc = weight[i] * c;
        xc += wc * x[i];
        cc += wc * c;
      }
      if (cc > 0 && xc * xc / cc > most) {
        most = xc * xc / cc;
        best = static_cast<float>(xc / cc);
      }
    }
  return best;
}

float largest_of(const float* x, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

}  // namespace

float search_symmetric(const float* x, const float* weight, int n, int low, int high) {
  const float largest = largest_of(x, n), first = largest / static_cast<float>(-low);
  if (!(largest > 0)) return 0;
  return best_scale(
      x, weight, n, first, [&](float sign, int t) { return sign / (first * candidate(t)); },
      [&](float v) { return nearest(v, low, high); });
}

void affine_codes(const float* x, int n, Affine a, int top, int* codes) {
  const float inverse = a.scale != 0 ? 1 / a.scale : 0;
  for (int i = 0; i < n; ++i) codes[i] = nearest((x[i] - a.min) * inverse, 0, top);
}

void symmetric_codes(const float* x, int n, float scale, int low, int high, int* codes) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < n; ++i) codes[i] = nearest(x[i] * inverse, low, high);
}

namespace {

double block_error(Decode decode, int n, const float* x, const float* weight, const uint8_t* block) {
  float values[kMostElements];
  decode(block, values);
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const double e = static_cast<double>(x[i]) - values[i];
    sum += weight[i] * e * e;
  }
  return sum;
}

}  // namespace

void keep_better(Decode decode, int n, const float* x, const float* weight, const uint8_t* found, int64_t bytes,
                 uint8_t* block) {
  if (block_error(decode, n, x, weight, found) < block_error(decode, n, x, weight, block))
    std::memcpy(block, found, static_cast<size_t>(bytes));
}

int nearest_level(std::span<const float> levels, float v) {
  int code = 0;
  for (size_t i = 1; i < levels.size(); ++i) code += v > 0.5f * (levels[i - 1] + levels[i]);
  return code;
}

float search_levels(const float* x, const float* weight, int n, std::span<const float> levels) {
  const float largest = largest_of(x, n);
  if (!(largest > 0)) return 0;
  return best_scale(
      x, weight, n, largest / levels.front(),
      [&](float sign, int t) { return sign * -levels.front() / largest / candidate(t); },
      [&](float v) { return levels[static_cast<size_t>(nearest_level(levels, v))]; });
}

}  // namespace fewbit::gguf
