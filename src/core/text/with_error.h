#pragma once
// A figure beside its standard error, for people.
#include <limits>
#include <string>

namespace fewbit {

// What stands for the error of a mean over one window, item or run: such an error is not zero, it is unknown.
inline constexpr double kNoError = std::numeric_limits<double>::quiet_NaN();

// "36.2168 ± 1.4379"; "36.2168" alone where the error is kNoError.
std::string with_error(double value, double error, int digits);

}  // namespace fewbit
