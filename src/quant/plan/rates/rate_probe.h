#pragma once
// What the parts of a measurement of rates share (rates.h): a clock, numbers to work on, and widths that get larger
// while there is time for them.
#include <functional>
#include <map>
#include <vector>

#include "src/core/stopwatch.h"
#include "src/quant/plan/rates/rates.h"

namespace fewbit {

inline constexpr int64_t kNarrowest = 512;  // width of a probe between the model's own: all groups and blocks divide it
inline constexpr double kShortest = 1e-2;   // seconds: what is over sooner is measured again

using Points = std::vector<std::pair<int64_t, double>>;  // {width, seconds}, for law_of()

// Where probes run: a device, numbers for all of them, and whether they are timed or run for their kernels' sake.
class Bench {
 public:
  Bench(Exec& ex, bool timed) : ex(ex), timed(timed) {}

  // Seconds of `work`, the mean of some calls where one is over at once. The first call does not count: it brings
  // memory and threads about, and on a GPU loads kernels. It is the only one where nothing is timed; then 0.
  double seconds_of(const std::function<void()>& work);
  // [rows, cols] values between -0.5 and 0.5 on the device; neighbouring columns are alike, so that a Gram matrix of
  // them looks like one of activations. They are cut out of one run of numbers, made once, at a place of `seed`.
  Tensor values(DType, int64_t rows, int64_t cols, int64_t seed);

  Exec& ex;
  const bool timed;

 private:
  const Tensor& numbers(DType);
  std::map<DType, Tensor> numbers_{};
};

double median_of(std::vector<double> values);  // of at least one

// Calls `probe` with ascending widths for as long as the next one is expected to take less than `seconds`, given that
// it takes `power` powers of the width; the first always.
void at_widths(const std::vector<int64_t>& widths, double seconds, double power,
               const std::function<void(int64_t)>& probe);

// Statistics n wide of values that are alike, as a block's are in both streams, and what they cost, made as the run
// makes them: both sums at a time.
struct Sums {
  InputStats stats{};
  double gram = 0, cross = 0;  // seconds for a token
};
Sums sums_of(Bench&, int64_t n, bool crossed, DType);

// The linears' part of the rates.
void measure_linears(Bench&, const QuantPlan&, const std::vector<int64_t>& widths, bool crossed, const RateOptions&,
                     Rates&);

// Seconds for a token of every op of a kind of block, in the dtype and the windows of the options.
std::vector<double> op_seconds(Bench&, const Checkpoint&, int kind, const RateOptions&);

// Stored weights into f32, where the method works: seconds for a weight.
double convert_seconds(Bench&);

// Packing, with the hash beside it, goes by the codes' count alone: seconds for a weight of a linear of this recipe.
double pack_seconds(Bench&, const PlannedLinear&);

}  // namespace fewbit
