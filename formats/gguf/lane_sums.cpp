// The sums over a block's codes. Unlike the rest of the encoders this file may be compiled to fused multiply-adds: they
// change nothing in sums whose products are exact, and approximate_gains() has a bound that holds with and without.
// What rounds a value to its code is kept out of them: a bound stands between the product and the addition.
#include "formats/gguf/lane_math.h"
#include "formats/gguf/lanes.h"

namespace fewbit::gguf {

// Partial sums: value i goes to sum i % kParts, so that few roundings follow each other.
FEWBIT_HOT void approximate_gains(const Magnitudes& m, const LaneTable& weight, const float* factor, float* positive,
                                  float* negative, Gains& gains) {
  constexpr int kParts = kGainParts;
  float px[kParts][kLanes] = {}, pc[kParts][kLanes] = {}, nx[kParts][kLanes] = {}, nc[kParts][kLanes] = {};
  const float highest = (m.both + 1) / 2;
  for (int i = 0; i < m.n; i += kParts)
    for (int k = 0; k < kParts; ++k)
      for (int l = 0; l < kLanes; ++l) {
        const float x = m.x[i + k][l], w = weight[i + k][l], most = m.most[i + k][l], other = m.other[i + k][l];
        const float rounded = round_even(at_most(x * factor[l], highest));
        const float p = at_most(rounded, most), n = at_most(rounded, other), wp = w * p, wn = w * n;
        px[k][l] += wp * x;
        pc[k][l] += wp * p;
        nx[k][l] += wn * x;
        nc[k][l] += wn * n;
      }
  for (int l = 0; l < kLanes; ++l) {
    const float p = (px[0][l] + px[1][l]) + (px[2][l] + px[3][l]), pp = (pc[0][l] + pc[1][l]) + (pc[2][l] + pc[3][l]);
    const float n = (nx[0][l] + nx[1][l]) + (nx[2][l] + nx[3][l]), nn = (nc[0][l] + nc[1][l]) + (nc[2][l] + nc[3][l]);
    const float of_p = p / pp * p, of_n = n / nn * n;
    positive[l] = of_p;
    negative[l] = of_n;
    gains.best[l] = at_least(at_least(gains.best[l], of_p), of_n);
    gains.least[l] = at_most(at_most(at_most(at_most(gains.least[l], p), pp), n), nn);
    gains.greatest[l] = at_least(at_least(at_least(at_least(gains.greatest[l], p), pp), n), nn);
  }
}

// Codes of at most 32: w (24 bits) times c (5 bits, or a power of two) times x (24 bits) fits the 53 of a double.
FEWBIT_HOT void scale_sums(const Magnitudes& m, const float* factor, const float* negative, double* xc, double* cc) {
  double sx[kLanes] = {}, sc[kLanes] = {};
  const float highest = (m.both + 1) / 2;
  for (int i = 0; i < m.n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const float rounded = round_even(at_most(m.x[i][l] * factor[l], highest));
      const float most = m.most[i][l], other = m.other[i][l], bound = negative[l] != 0 ? other : most;
      const double c = at_most(rounded, bound), wc = m.wide_weight[i][l] * c;
      sx[l] += wc * m.wide_x[i][l];
      sc[l] += wc * c;
    }
  for (int l = 0; l < kLanes; ++l) xc[l] = sx[l], cc[l] = sc[l];
}

// Codes of at most 31: as above, and w x (48 bits) times c.
FEWBIT_HOT void affine_sums(const Above& a, int n, float top, const float* inverse, CodeSums& sums) {
  double c[kLanes] = {}, cc[kLanes] = {}, xc[kLanes] = {};
  for (int i = 0; i < n; ++i)
    for (int l = 0; l < kLanes; ++l) {
      const double code = round_even(at_most(a.above[i][l] * inverse[l], top)), wc = a.weight[i][l] * code;
      c[l] += wc;
      cc[l] += wc * code;
      xc[l] += a.wx[i][l] * code;
    }
  for (int l = 0; l < kLanes; ++l) sums.c[l] = c[l], sums.cc[l] = cc[l], sums.xc[l] = xc[l];
}

}  // namespace fewbit::gguf
