#pragma once
// RoundingNoise: what rounding is expected to cost where a scale stands between an input and its linears, as a function
// of the scale of every single feature, and the way down that function. A rounding with steps of width d leaves an
// error of variance d^2 / 12. With x_tj / s_j for the inputs and w_oj s_j for the weights, the sum over the linears of
// the mean squared error of their outputs, relative to the energy of those, is
//   E(s) = sum_c 1 / energy_c * 1/12 * (   mean_t a_t^2 * sum_o sum_j (w_oj s_j)^2
//                                        + sum_o sum_g b_og^2 * sum_{j in g} mean_t x_tj^2 / s_j^2 )
//   a_t  = max_j |x_tj / s_j| / 127           the step of an input's row; static: the largest of them; absent: 0
//   b_og = 2 max_{j in g} |w_oj s_j| / (2^bits - 1)   that of a weight group
// Errors of single roundings are taken as independent. Maxima are found on the device, all else is host arithmetic in a
// fixed order: the bits depend neither on threads nor on the device.
#include "src/quant/search/feature_search.h"

namespace fewbit {

struct NoisyLinear {
  Tensor rows{};      // [n, in] f32 on the device: some of its weight
  double energy = 0;  // of the outputs of those rows, up to a factor that all linears share; > 0
  QuantSpec spec{};
};

// From `start` (one value per feature of the absorber, all > 0) downhill by sub-gradients on log s, a fixed number of
// steps; the point with the least E. x [tokens, in] f32 on the device. It fits the tokens that it sees: judge what
// comes back on others.
Features least_noise(Exec&, const Absorber&, ConstTensorView x, const std::vector<NoisyLinear>&, const Features& start);

// E itself, for scales by input feature; `slope` [in] is overwritten with the sub-gradient of E by log s.
double rounding_noise(Exec&, ConstTensorView x, const std::vector<NoisyLinear>&, const Features& wide,
                      std::vector<double>& slope);

}  // namespace fewbit
