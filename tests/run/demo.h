#pragma once
// The demo model of the source tree and ids for it.
#include <filesystem>
#include <vector>

#include "src/core/rng.h"
#include "tests/support/paths.h"

namespace fewbit::test {

inline std::filesystem::path demo() { return in_source("calib_data/demo-model"); }

// Ids below 4,096, which its vocabulary has.
inline std::vector<int32_t> random_ids(int64_t n, uint64_t seed) {
  Rng rng(seed, "ids");
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(4096)));
  return ids;
}

}  // namespace fewbit::test
