#include "src/core/text/with_error.h"

#include <fmt/format.h>

#include <cmath>

namespace fewbit {

std::string with_error(double value, double error, int digits) {
  if (std::isnan(error)) return fmt::format("{:.{}f}", value, digits);
  return fmt::format("{:.{}f} ± {:.{}f}", value, digits, error, digits);
}

}  // namespace fewbit
