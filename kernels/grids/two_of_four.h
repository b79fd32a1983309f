#pragma once
// 2:4 sparsity: of every four neighbouring columns of a row (a quad), counted from the first, two weights at most are
// not zero. Which two stay, in one text for the CPU and CUDA halves.
#include "kernels/grids/integer_grid.h"

namespace fewbit {

inline constexpr int kWholeQuad = 15;  // a mask has bit i for column i; here all four stay

// The two largest of four scores as a mask; of equal ones the earlier.
FEWBIT_HD int two_largest(const float (&score)[4]) {
  int mask = 0;
  for (int i = 0; i < 4; ++i) {
    int before = 0;  // scores that go before this one
    for (int k = 0; k < 4; ++k) before += k < i ? score[k] >= score[i] : score[k] > score[i];
    mask |= static_cast<int>(before < 2) << i;
  }
  return mask;
}

// The pair of the largest (w s)^2. With live weights and the diagonal of the factor R the measure of SparseGPT (Frantar
// & Alistarh, 2023, section 3.3): what leaving one out costs when all columns after it make up for it. A trial of all
// six pairs by what their four columns add to the loss, rounding included, ended with the same KL: columns to come are
// pruned too and make up for less than it thinks.
FEWBIT_HD int larger_pair(const float (&w)[4], const float (&s)[4]) {
  float score[4];
  for (int i = 0; i < 4; ++i) score[i] = mul_rn(mul_rn(w[i], s[i]), mul_rn(w[i], s[i]));
  return two_largest(score);
}

// A column in the descent over codes: (T - Q) H and the diagonal of H there.
struct DescentColumn {
  float product = 0, diagonal = 0;
};

// What a step does that gives column j, whose level is 0, the level `level` and takes that of another of its quad away.
struct QuadExchange {
  float level = 0;
  float gain = 0;  // by which the loss falls; 0 where the step is none
  int other = -1;
};

// For the other column k with the level `of_k`; hjk = H_jk. With d_k = -of_k scale and d_j = level scale the loss falls
// by 2 (d_j p_j + d_k p_k) - d_j^2 H_jj - d_k^2 H_kk - 2 d_j d_k H_jk, and d_j is the best one on the grid.
FEWBIT_HD QuadExchange quad_exchange(const DescentColumn& j, const DescentColumn& k, float hjk, float of_k, float scale,
                                     int zero, int max_code) {
  QuadExchange e;
  const float dk = -mul_rn(of_k, scale);
  const float pj = add_rn(j.product, -mul_rn(dk, hjk));  // once k is gone
  e.level = grid_level(pj / j.diagonal, scale, zero, max_code);
  const float dj = mul_rn(e.level, scale);
  const float by_k = mul_rn(dk, add_rn(2 * k.product, -mul_rn(dk, k.diagonal)));
  const float by_j = mul_rn(dj, add_rn(2 * pj, -mul_rn(dj, j.diagonal)));
  e.gain = e.level != 0 ? add_rn(by_k, by_j) : 0.f;
  return e;
}

}  // namespace fewbit
