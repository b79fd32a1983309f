// Opened blocks side by side: the sub-blocks of one or more blocks in sixteen lanes, searched as open_block.cpp, the
// rule, searches them one after the other. Compiled without fused multiply-adds, as that is.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/gguf/lane_math.h"
#include "formats/gguf/lanes.h"
#include "formats/gguf/open_search.h"

namespace fewbit::gguf {
namespace {

using Doubles = double[kLanes];
using Floats = float[kLanes];

// A grid per lane: decoded = scale * level + min.
struct Grid {
  Floats scale, min, inverse;
  bool allowed[kLanes];
};

// The levels of a form: rounding finds even ones, steps the uneven.
struct Levels {
  float low, high;
  const LevelSteps* steps;  // null: even
};

FEWBIT_HOT void even_errors(const Lanes& s, const Levels& f, const Grid& g, double* error) {
  Doubles sum = {};
  const float low = f.low, high = f.high;
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const float x = s.x[i][l];
      const float level = round_even(at_least(at_most((x - g.min[l]) * g.inverse[l], high), low));
      const double e = x - (g.scale[l] * level + g.min[l]);
      sum[l] += s.weight[i][l] * e * e;
    }
  for (int l = 0; l < kLanes; ++l) error[l] = sum[l];
}

FEWBIT_HOT void uneven_errors(const Lanes& s, const LevelSteps& steps, const Grid& g, double* error) {
  Doubles sum = {};
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const float x = s.x[i][l], level = level_at(steps, x * g.inverse[l]);
      const double e = x - (g.scale[l] * level + g.min[l]);
      sum[l] += s.weight[i][l] * e * e;
    }
  for (int l = 0; l < kLanes; ++l) error[l] = sum[l];
}

FEWBIT_HOT void even_codes(const Lanes& s, const Levels& f, const Grid& g, LaneTable& codes) {
  const float low = f.low, high = f.high;
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l)
      codes[i][l] = round_even(at_least(at_most((s.x[i][l] - g.min[l]) * g.inverse[l], high), low)) - low;
}

FEWBIT_HOT void uneven_codes(const Lanes& s, const LevelSteps& steps, const Grid& g, LaneTable& codes) {
  for (int i = 0; i < s.n; ++i)
    for (int l = 0; l < kLanes; ++l) codes[i][l] = code_at(steps, s.x[i][l] * g.inverse[l]);
}

// Blocks of one type whose sub-blocks fill the lanes.
class Group {
 public:
  Group(const BlockType& type, const float* x, const float* weight, int blocks)
      : type_(type), form_(*type.open), x_(x), weight_(weight), blocks_(blocks), steps_(steps_of(form_)) {
    levels_ = {form_.levels.front(), form_.levels.back(), form_.even ? nullptr : &steps_};
    load_lanes(x, weight, form_.sub, blocks * subs(), form_.most_min > 0, lanes_);
  }

  void encode(uint8_t* to) {
    searched();
    OpenBlock found[kLanes];
    std::copy_n(best_, blocks_, found);
    plain();
    for (int k = 0; k < blocks_; ++k, to += type_.bytes) {
      const float *x = x_ + k * form_.elements, *weight = weight_ + k * form_.elements;
      if (!regular(k)) {
        type_.encode(x, weight, to);
        continue;
      }
      uint8_t bytes[kMostBlockBytes];
      form_.store(found[k], bytes);
      form_.store(now_[k], to);
      keep_better(type_.decode, form_.elements, x, weight, bytes, type_.bytes, to);
    }
  }

 private:
  static LevelSteps steps_of(const OpenForm& f) { return f.even ? LevelSteps() : LevelSteps(f.levels); }
  int subs() const { return form_.sub_blocks(); }
  Source source(int k) const { return {form_, x_ + k * form_.elements, weight_ + k * form_.elements}; }
  bool regular(int k) const {
    const bool* first = lanes_.regular + k * subs();
    return std::all_of(first, first + subs(), [](bool r) { return r; });
  }

  // The scales that every sub-block wants on its own.
  void want() {
    Floats scale, min = {};
    if (form_.most_min > 0)
      search_affine(lanes_, static_cast<int>(levels_.high), MinSign::not_positive, scale, min);
    else if (form_.even)
      search_symmetric(lanes_, static_cast<int>(levels_.low), static_cast<int>(levels_.high), scale);
    else
      search_levels(lanes_, form_.levels, scale);
    for (int l = 0; l < kLanes; ++l) wanted_[l] = {scale[l], min[l]};
  }

  void searched() {
    want();
    double least[kLanes];
    bool active[kLanes] = {};
    for (int k = 0; k < blocks_; ++k) {
      active[k] = regular(k);
      least[k] = HUGE_VAL;
      now_[k] = {};
      if (active[k]) common_scales(source(k), wanted_ + k * subs(), now_[k]);
    }
    for (int round = 0; round < kRefitRounds && std::any_of(active, active + blocks_, [](bool a) { return a; });
         ++round) {
      choose(1);
      for (int k = 0; k < blocks_; ++k) {
        if (!active[k]) continue;
        const double error = take(k);
        active[k] = error < least[k];
        if (!active[k]) continue;
        least[k] = error;
        best_[k] = now_[k];
        active[k] = refit(source(k), now_[k]);
      }
    }
  }

  void plain() {
    for (int k = 0; k < blocks_; ++k) {
      now_[k] = {};
      if (!regular(k)) continue;
      for (int j = 0; j < subs(); ++j) wanted_[k * subs() + j] = plain_scale(source(k), j);
      common_scales(source(k), wanted_ + k * subs(), now_[k]);
    }
    choose(0);
    for (int k = 0; k < blocks_; ++k)
      if (regular(k)) take(k);
  }

  // Integer scales (and minima) and codes of every lane under its block's d and dmin: of the nearest integers and their
  // neighbours, `reach` apart, those with the least error.
  void choose(int reach) {
    for (int l = 0; l < kLanes; ++l) {
      const OpenBlock& b = now_[block_of(l)];
      scale_[l] = nearest_integer(wanted_[l].scale, b.d, form_.least_scale, form_.most_scale);
      min_[l] = form_.most_min > 0 && b.dmin > 0 ? nearest_integer(-wanted_[l].min, b.dmin, 0, form_.most_min) : 0;
      error_[l] = HUGE_VAL;
    }
    const int around = form_.most_min > 0 ? reach : 0;
    int best_scale[kLanes], best_min[kLanes];
    std::copy_n(scale_, kLanes, best_scale);
    std::copy_n(min_, kLanes, best_min);
    for (int a = -reach; a <= reach; ++a)
      for (int m = -around; m <= around; ++m) {
        const Grid grid = grid_at(scale_, min_, a, m);
        Doubles error;
        if (levels_.steps)
          uneven_errors(lanes_, steps_, grid, error);
        else
          even_errors(lanes_, levels_, grid, error);
        for (int l = 0; l < kLanes; ++l) {
          if (!grid.allowed[l] || !(error[l] < error_[l])) continue;
          error_[l] = error[l];
          best_scale[l] = scale_[l] + a;
          best_min[l] = min_[l] + m;
        }
      }
    std::copy_n(best_scale, kLanes, scale_);
    std::copy_n(best_min, kLanes, min_);
    const Grid grid = grid_at(scale_, min_, 0, 0);
    if (levels_.steps)
      uneven_codes(lanes_, steps_, grid, codes_);
    else
      even_codes(lanes_, levels_, grid, codes_);
  }

  Grid grid_at(const int* scale, const int* min, int a, int m) const {
    Grid g;
    for (int l = 0; l < kLanes; ++l) {
      const OpenBlock& b = now_[block_of(l)];
      const int s = scale[l] + a, n = min[l] + m;
      g.allowed[l] = s >= form_.least_scale && s <= form_.most_scale && n >= 0 && n <= form_.most_min;
      g.scale[l] = b.d * static_cast<float>(s);
      g.min[l] = -(b.dmin * static_cast<float>(n));
      g.inverse[l] = g.scale[l] != 0 ? 1 / g.scale[l] : 0;
    }
    return g;
  }

  // Block k with what its lanes chose; returns its error.
  double take(int k) {
    OpenBlock& b = now_[k];
    double error = 0;
    for (int j = 0; j < subs(); ++j) {
      const int l = k * subs() + j;
      b.scale[j] = scale_[l];
      b.min[j] = min_[l];
      for (int i = 0; i < form_.sub; ++i)
        b.codes[j * form_.sub + i] = static_cast<uint8_t>(static_cast<int>(codes_[i][l]));
      error += error_[l];
    }
    return error;
  }

  int block_of(int lane) const { return std::min(lane / subs(), blocks_ - 1); }

  const BlockType& type_;
  const OpenForm& form_;
  const float *x_, *weight_;
  int blocks_;
  LevelSteps steps_;
  Levels levels_;
  Lanes lanes_;
  Affine wanted_[kLanes];
  OpenBlock now_[kLanes], best_[kLanes];
  int scale_[kLanes], min_[kLanes];
  Doubles error_;
  LaneTable codes_;
};

}  // namespace

void encode_open_many(const BlockType& type, const float* x, const float* weight, int64_t blocks, uint8_t* to) {
  const int64_t at_once = kLanes / type.open->sub_blocks();
  for (int64_t b = 0; b < blocks; b += at_once) {
    const int64_t first = b * type.open->elements;
    Group(type, x + first, weight + first, static_cast<int>(std::min(at_once, blocks - b))).encode(to + b * type.bytes);
  }
}

}  // namespace fewbit::gguf
