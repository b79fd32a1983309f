#pragma once
// Sixteen blocks, or sub-blocks that have scales of their own, side by side: what block_search.h does with one of them
// at a time, in loops that the compiler turns into vector instructions. Every lane does the arithmetic of
// block_search.cpp in its order, so the results are the same bits. Internal to formats/gguf.
#include <cstdint>
#include <span>

#include "formats/gguf/block_search.h"

namespace fewbit::gguf {

inline constexpr int kLanes = 16, kLaneValues = 32;

using LaneTable = float[kLaneValues][kLanes];
using WideTable = double[kLaneValues][kLanes];

// Value i of block l is x[i][l].
struct Lanes {
  int n = 0, count = 0;  // values of a block; blocks in use
  // The loops do not know infinity and stay clear of underflow: blocks whose values or sums leave the middle of f32's
  // range have false here and are left to the code that takes one block at a time.
  bool regular[kLanes] = {};
  alignas(64) float low[kLanes], high[kLanes];  // extremes of x
  alignas(64) LaneTable x, weight;
};

// `count` blocks of n consecutive values, n at most kLaneValues. Irregular are blocks whose largest magnitude, or with
// `affine` the distance of whose extremes, is tiny or zero, and those with huge values; they and unused lanes hold a
// ramp instead.
void load_lanes(const float* x, const float* weight, int n, int count, bool affine, Lanes&);

// As search_affine, search_symmetric and search_levels, per lane; lanes may become irregular.
void search_affine(Lanes&, int top, MinSign, float* scale, float* min);
void search_symmetric(Lanes&, int low, int high, float* scale);
void search_levels(const Lanes&, std::span<const float> levels, float* scale);

// What the search for a scale reads of its blocks: magnitudes, and how large a code may become under a positive scale.
struct Magnitudes {
  int n = 0;
  float both = 0;                        // the two largest magnitudes of codes, together
  alignas(64) LaneTable x, most, other;  // other: under a negative scale
  alignas(64) WideTable wide_x, wide_weight;
};
// Of all candidates so far: the best gain, the extremes of the sums.
struct Gains {
  alignas(64) float best[kLanes], least[kLanes], greatest[kLanes];
};
inline constexpr int kGainParts = 4;  // sums that a block's sum is cut into, n a multiple of them
// What the scales 1 / factor and -1 / factor take off the energy of their blocks, (sum w x c)^2 / sum w c^2, in f32.
void approximate_gains(const Magnitudes&, const LaneTable& weight, const float* factor, float* positive,
                       float* negative, Gains&);
// sum w |x| c and sum w c^2 under the scale 1 / factor, or -1 / factor where `negative` is not 0. c is at most 32.
void scale_sums(const Magnitudes&, const float* factor, const float* negative, double* xc, double* cc);

// What the search for a scale and a minimum reads, and what it sums for each candidate: w c, w c^2 and w x c.
struct Above {
  double w[kLanes] = {}, x[kLanes] = {}, xx[kLanes] = {};  // sums of w, w x and w x^2
  alignas(64) LaneTable above;                             // x - min
  alignas(64) WideTable weight, wx;
};
struct CodeSums {
  alignas(64) double c[kLanes], cc[kLanes], xc[kLanes];
};
void affine_sums(const Above&, int n, float top, const float* inverse, CodeSums&);  // top is at most 31

}  // namespace fewbit::gguf
