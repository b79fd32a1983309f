// Generation, the sampler and the losses of a runner, on the demo model of the source tree.
#include <algorithm>
#include <array>
#include <cmath>

#include "src/run/engine.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

TEST(Generate, StopsAtEosAndAtTheLimitAndReportsEveryToken) {
  Exec ex = Exec::cpu();
  Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> prompt = random_ids(5, 8);
  std::vector<int32_t> seen;
  Engine engine(ex, c, {.capacity = 64});
  const std::vector<int32_t> all = generate(ex, engine, prompt, 12, {}, [&](int32_t id) { seen.push_back(id); });
  EXPECT_EQ(all, seen);
  ASSERT_EQ(all.size(), 12u);
  // Declare one of the chosen tokens an end: generation stops where it first appears.
  c.spec.eos = {all[4]};
  Engine stopping(ex, c, {.capacity = 64});
  const auto first = std::find(all.begin(), all.end(), all[4]) - all.begin();
  EXPECT_EQ(static_cast<int64_t>(generate(ex, stopping, prompt, 12, {}).size()), first + 1);
}

TEST(Generate, SamplingDependsOnTheSeedAlone) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  Engine engine(ex, c, {.capacity = 64});
  const auto run = [&](uint64_t seed) {
    engine.reset();
    return generate(ex, engine, random_ids(5, 8), 12, {.temperature = 1.f, .seed = seed});
  };
  const std::vector<int32_t> a = run(1), b = run(1), other = run(2);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, other);
}

TEST(Runner, NamesTheTokenOutsideTheVocabulary) {
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> ids = {1, 2, 5000};
  try {
    check_ids(c.spec, ids);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("token 2"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("5000"), std::string::npos) << e.what();
  }
}

TEST(Runner, LossesDoNotDependOnHowManySequencesGoTogether) {
  Exec ex = Exec::cpu();
  Runner runner(ex, Checkpoint::open(demo()), {.dtype = DType::f32});
  const std::vector<int32_t> ids = random_ids(3 * 33, 5);
  const std::vector<float> together = runner.nll(ids, 3);
  std::vector<float> alone;
  for (int s = 0; s < 3; ++s)
    for (const float l : runner.nll({ids.data() + s * 33, 33}, 1)) alone.push_back(l);
  const auto n = static_cast<int64_t>(alone.size());
  EXPECT_LE(relative_error(Tensor::host_from<float>(DType::f32, {n}, together),
                           Tensor::host_from<float>(DType::f32, {n}, alone)),
            tol::kLogitsF32);
}

TEST(Sampler, GreedyTopKTopPAndMinP) {
  const std::vector<float> logits = {0.f, std::log(4.f), std::log(2.f), std::log(1.f)};  // 1 : 4 : 2 : 1
  EXPECT_EQ(sample(logits, {}, 0, 0), 1);
  const auto chosen = [&](const SamplerOptions& o) {
    std::array<int, 4> counts{};
    for (int64_t p = 0; p < 4000; ++p) ++counts[static_cast<size_t>(sample(logits, o, 0, p))];
    return counts;
  };
  const std::array<int, 4> all = chosen({.temperature = 1});
  EXPECT_NEAR(all[1] / 4000., 0.5, 0.03);
  EXPECT_NEAR(all[2] / 4000., 0.25, 0.03);
  EXPECT_NEAR(all[3] / 4000., 0.125, 0.03);
  EXPECT_EQ(chosen({.temperature = 1, .top_k = 1})[1], 4000);
  const std::array<int, 4> two = chosen({.temperature = 1, .top_k = 2});
  EXPECT_EQ(two[0] + two[3], 0);
  EXPECT_NEAR(two[1] / 4000., 2. / 3, 0.03);
  EXPECT_EQ(chosen({.temperature = 1, .top_p = 0.4f})[1], 4000);
  EXPECT_EQ(chosen({.temperature = 1, .top_p = 0.7f})[0], 0);
  EXPECT_EQ(chosen({.temperature = 1, .min_p = 0.3f})[3], 0);
  EXPECT_GT(chosen({.temperature = 1, .min_p = 0.3f})[2], 0);
  EXPECT_GT(chosen({.temperature = 0.25f})[1], 3600);  // 256 : 16 : 1 : 1
}

}  // namespace
}  // namespace fewbit::test
