#pragma once
// ProcessorWatch: seconds that all threads of the process were computing since it was made, without what others did.
#include <ctime>

namespace fewbit {

class ProcessorWatch {
 public:
  double seconds() const { return static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC; }

 private:
  std::clock_t start_ = std::clock();
};

}  // namespace fewbit
