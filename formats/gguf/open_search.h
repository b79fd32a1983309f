#pragma once
// Parts of the search for an opened block that work on one block at a time; open_block.cpp and open_lanes.cpp are made
// of them.
#include "formats/gguf/block_search.h"
#include "formats/gguf/open_block.h"

namespace fewbit::gguf {

inline constexpr int kRefitRounds = 3;

// A block's values and weights.
struct Source {
  const OpenForm& form;
  const float *x, *weight;

  int count() const { return form.sub_blocks(); }
  int top() const { return static_cast<int>(form.levels.size()) - 1; }
  const float* values(int j) const { return x + j * form.sub; }
  const float* weights(int j) const { return weight + j * form.sub; }
};

// d and dmin by least squares for given codes and integer scales; false where they are not determined.
bool refit(const Source&, OpenBlock&);
// d (and dmin) such that the integers reach the largest scale (and minimum) that a sub-block wants.
void common_scales(const Source&, const Affine* wanted, OpenBlock&);
// What the plain rule wants for a sub-block: its range (and 0) covered; without minima its largest magnitude meets the
// lowest level.
Affine plain_scale(const Source&, int j);
int nearest_integer(float v, float unit, int least, int most);

}  // namespace fewbit::gguf
