#pragma once
// Grids of levels: codes that point into a table, under scales of two levels and, where a type has them, minima. 4-bit
// floats (NVFP4, MXFP4) and the blocks of GGUF whose scales are themselves rounded are grids of this kind.
//   value(o, i) = d[o, b] scales[o, j] levels[code(o, i)] - dmin[o, b] mins[o, j],   b = i / block, j = i / sub
#include <algorithm>
#include <cmath>
#include <span>

#include "src/core/tensor.h"

namespace fewbit {

// Which values the scales of sub-blocks may have.
enum class ScaleSet : uint8_t {
  integers,  // least_scale to most_scale
  e4m3,      // positive E4M3 values
  e8m0,      // powers of two
};

struct LevelGrid {
  std::span<const float> levels{};  // by code, ascending, at most 256
  bool even = false;                // levels lie 1 apart
  int64_t block = 256, sub = 16;    // inputs that share d and dmin; inputs that share a scale and a minimum
  ScaleSet scale_set = ScaleSet::integers;
  int least_scale = 1, most_scale = 1;
  int most_min = 0;      // minima are integers from 0; 0: there are none
  bool moves_d = false;  // d and dmin may be fitted, as f16; else they stay as they were chosen

  // The code of the level nearest to v.
  int nearest(float v) const {
    if (even) {
      const float top = static_cast<float>(levels.size() - 1);
      return static_cast<int>(std::nearbyint(std::clamp(v - levels.front(), 0.f, top)));
    }
    int code = 0;
    for (size_t i = 1; i < levels.size(); ++i) code += v > 0.5f * (levels[i - 1] + levels[i]);
    return code;
  }
};

// A linear on such a grid, in host memory.
struct LevelCodes {
  TensorView codes{};           // [out, in] u8
  TensorView d{}, dmin{};       // [out, in / block] f32; dmin is unused without minima
  TensorView scales{}, mins{};  // [out, in / sub] f32; mins is unused without minima
};

}  // namespace fewbit
