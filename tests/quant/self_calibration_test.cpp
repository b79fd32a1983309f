// Ids that the model wrote are kept with the run, and believed only for the same sampling.
#include "src/quant/loop/self_calibration.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

TEST(KeptSample, IsTakenForTheSameSamplingAndWholeOnly) {
  const TempDir dir;
  const std::filesystem::path file = dir / "sampled-text";
  const Windows w{.count = 3, .length = 4, .ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, '\n'}, .source = "self"};
  EXPECT_FALSE(kept_sample(file, "seed 0"));
  keep_sample(file, "seed 0", w);
  const auto again = kept_sample(file, "seed 0");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->ids, w.ids);
  EXPECT_EQ(again->count, 3);
  EXPECT_EQ(again->length, 4);
  EXPECT_EQ(again->source, "self");
  EXPECT_FALSE(kept_sample(file, "seed 1"));
  const std::string whole = bytes_of_file(file);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::ofstream(file, std::ios::binary) << whole.substr(0, bytes);
    ASSERT_FALSE(kept_sample(file, "seed 0")) << bytes;
  }
  std::string turned = whole;
  turned[turned.size() - 7] = static_cast<char>(turned[turned.size() - 7] ^ 1);
  std::ofstream(file, std::ios::binary) << turned;
  EXPECT_FALSE(kept_sample(file, "seed 0"));
}

TEST(KeptSample, AModelThatDoesNotFitWholeIsRefusedWithTheWayOut) {
  const Checkpoint c = Checkpoint::open(test::in_source("calib_data/demo-model"));
  MemoryLimits limits;
  EXPECT_EQ(refuse_to_sample(c, DType::f32, 128, 2048, limits, false), "");
  limits.host = 4 * parameter_count(c.spec);  // no room for the cache
  const std::string why = refuse_to_sample(c, DType::f32, 128, 2048, limits, false);
  EXPECT_NE(why.find("--calib builtin"), std::string::npos) << why;
  EXPECT_EQ(refuse_to_sample(c, DType::f32, 128, 2048, limits, true), "") << "the GPU has no limit here";
}

}  // namespace
}  // namespace fewbit::test
