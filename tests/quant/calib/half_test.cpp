// targets=half: the unquantized stream runs in half of the chunks, and the shift of targets is learned from those.
#include <algorithm>
#include <array>

#include "src/calib/observe.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "tests/quant/made_up_windows.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

TEST(Half, EveryRankHasAsManyOfItsChunks) {
  for (const int ranks : {1, 2, 4}) {
    std::array<int, 4> of_rank{};
    for (int64_t chunk = 0; chunk < 16; ++chunk)
      if (Chunks::in_half(chunk)) ++of_rank[static_cast<size_t>(chunk % ranks)];
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(of_rank[static_cast<size_t>(rank)], 8 / ranks) << ranks;
  }
  const Chunks few{.windows = 3, .length = chunk_tokens(Device::cpu)};
  EXPECT_EQ(few.half_tokens(), few.length) << "the first of three; the others have one bit each";
  EXPECT_EQ((Chunks{.windows = 1, .length = 100}.half_tokens()), 100) << "one chunk is looked at whole";
}

// Rows in portions of any size, some with the unquantized stream's and some alone.
FEWBIT_DEVICE_TEST(Half, SumsTakeTheDifferenceOfTheStreamsFromRowsThatHaveBoth) {
  constexpr int64_t kRows = 100, kBoth = 60, kIn = 24;
  const Tensor x = random_normal(DType::f32, {kRows, kIn}, 3), full = random_normal(DType::f32, {kBoth, kIn}, 4);
  const Tensor dx = ex.to_device(x), dfull = ex.to_device(full);
  const auto rows = [](const Tensor& t, int64_t begin, int64_t end) { return t.view().row_range(begin, end); };
  const EachChunk each = [&](const auto& show) {
    show({rows(dx, 0, 20), rows(dfull, 0, 20)});
    show({rows(dx, 60, 75)});
    show({rows(dx, 20, 60), rows(dfull, 20, 60)});
    show({rows(dx, 75, 100)});
  };
  const InputStats s = observe_input(ex, each, kRows, {.in = kIn, .cross = true}, {});
  EXPECT_EQ(s.tokens, kRows);
  std::vector<double> gram(kIn * kIn), cross(kIn * kIn);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t i = 0; i < kIn; ++i)
      for (int64_t j = 0; j < kIn; ++j) {
        const double a = x.as<float>()[r * kIn + i], b = x.as<float>()[r * kIn + j];
        gram[static_cast<size_t>(i * kIn + j)] += a * b;
        const double shift = r < kBoth ? (full.as<float>()[r * kIn + i] - a) * b * kRows / kBoth : 0;
        cross[static_cast<size_t>(i * kIn + j)] += a * b + shift;
      }
  const auto close = [&](const Tensor& sums, const std::vector<double>& expected) {
    const Tensor as_f32 = Tensor::host(DType::f32, {kIn, kIn});
    std::copy(expected.begin(), expected.end(), as_f32.as<float>());
    EXPECT_LT(relative_error(ex.to_host(sums), as_f32), tol::kF32Op);
  };
  close(s.gram, gram);
  close(s.cross, cross);
}

class HalfInARun : public ::testing::Test {
 protected:
  void SetUp() override {
    synthesize(dir / "tiny", {.preset = "tiny"}, {});
    model.emplace(Checkpoint::open(dir / "tiny"));
  }
  QuantPlan plan_of(const std::string& recipe) const {
    return make_plan(*model, {.base = parse_recipe(recipe), .tokens = kCount * kLength, .seq_len = kLength});
  }
  // The codes' digests.
  std::vector<std::string> coded(const std::string& recipe) {
    Exec ex = Exec::cpu();
    QuantJob job;
    job.recipe = recipe;
    job.out = dir / ("out" + std::to_string(++made));
    std::vector<std::string> all;
    for (const LinearRecord& l :
         run_pipeline(ex, *model, plan_of(recipe), made_up_windows(model->spec, kCount, kLength), job).linears)
      all.push_back(l.hash);
    return all;
  }

  static constexpr int64_t kCount = 3, kLength = 1100;  // a window a chunk, the first of which runs in both streams
  const TempDir dir;
  std::optional<Checkpoint> model{};
  int made = 0;
};

TEST_F(HalfInARun, IsWhatQuickDoes) {
  const std::vector<std::string> quick = coded("gptq int3 g32 effort=quick");
  EXPECT_EQ(quick, coded("gptq int3 g32 effort=quick targets=half"));
  EXPECT_NE(quick, coded("gptq int3 g32 effort=quick targets=inputs"));
  EXPECT_NE(quick, coded("gptq int3 g32 effort=quick targets=off"));
}

TEST_F(HalfInARun, ServesWhereNobodyAsksForMore) {
  const Chunks chunks{.windows = kCount, .length = kLength};
  EXPECT_DOUBLE_EQ(plan_of("gptq int4 g32 targets=half").full_streams(chunks), 1. / 3);
  EXPECT_DOUBLE_EQ(plan_of("gptq int4 g32 targets=inputs").full_streams(chunks), 1);
  EXPECT_DOUBLE_EQ(plan_of("gptq int4 g32 targets=off").full_streams(chunks), 0);
  EXPECT_FALSE(plan_of("gptq int3 g32 effort=best targets=half").by_half) << "rounding is learned from all windows";
  PlanOptions mixed{.base = parse_recipe("gptq int4 g32 effort=quick"), .tokens = 300, .seq_len = 100};
  mixed.rules = {{"*.0.mlp.*", parse_recipe("targets=on")}};
  EXPECT_FALSE(make_plan(*model, mixed).by_half) << "one linear's targets want all chunks";
  synthesize(dir / "moe", {.preset = "tiny-moe"}, {});
  model.emplace(Checkpoint::open(dir / "moe"));
  EXPECT_FALSE(plan_of("gptq int4 g32 effort=quick").by_half) << "experts see a few of the tokens, and need those";
}

}  // namespace
}  // namespace fewbit::test
