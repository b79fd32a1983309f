// Experts that are quantized several at a time: the bytes and records are those of one after the other.
#include "src/calib/lanes.h"

#include <fmt/format.h>

#include <atomic>

#include "kernels/model/cast.h"
#include "src/quant/loop/pipeline.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(Lanes, WorkComesBehindWhatTheExecWasGiven) {
  Lanes lanes(ex, 3);
  EXPECT_EQ(lanes.count(), 3);
  constexpr int64_t kCount = 1 << 20;
  std::vector<Tensor> from, to;
  std::vector<std::future<void>> done;
  for (int i = 0; i < 24; ++i) {
    const Tensor x = random_normal(DType::f32, {kCount}, static_cast<uint64_t>(i));
    from.push_back(ex.alloc(DType::f32, {kCount}));
    to.push_back(ex.alloc(DType::bf16, {kCount}));
    ex.copy(x, from.back());
    done.push_back(lanes.give([a = from.back().view(), b = to.back().view()](Exec& lane) { cast(lane, a, b); }));
  }
  for (std::future<void>& d : done) d.get();
  for (int i = 0; i < 24; ++i) {
    const Tensor expected = ex.alloc(DType::bf16, {kCount});
    cast(ex, from[static_cast<size_t>(i)], expected);
    EXPECT_EQ(first_difference(ex.to_host(to[static_cast<size_t>(i)]), ex.to_host(expected)), "") << i;
  }
}

FEWBIT_DEVICE_TEST(Lanes, AnErrorIsThatOfItsWorkAndTheOthersAreDone) {
  std::atomic<int> count = 0;
  {
    Lanes lanes(ex, 2);
    std::vector<std::future<void>> done;
    for (int i = 0; i < 8; ++i)
      done.push_back(lanes.give([&count, i](Exec&) {
        if (i == 3) fail(ErrorKind::numeric, "the third");
        ++count;
      }));
    for (int i = 0; i < 8; ++i)
      if (i == 3)
        EXPECT_EQ(message_of([&] { done[3].get(); }, ErrorKind::numeric), "the third");
      else
        EXPECT_NO_THROW(done[static_cast<size_t>(i)].get());
    lanes.give([&count](Exec&) { ++count; });
  }
  EXPECT_EQ(count, 8) << "what was given is done before they go";
}

struct Case {
  const char *name, *recipe;
};

class ExpertLanes : public ::testing::TestWithParam<Case> {
 protected:
  void expect_same_bytes(Exec& ex) const {
    const Checkpoint c = Checkpoint::open(reference("goldens/models/qwen3-moe"));
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 8 * 64; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + i / 64 * 31) % c.spec.vocab));
    const Windows windows = windows_from_ids(std::move(ids), 8, 64, "made");
    PlanOptions options;
    options.base = parse_recipe(GetParam().recipe);
    options.tokens = 8 * 64;
    options.seq_len = 64;
    options.on_gpu = ex.on_cuda();
    QuantPlan plan = make_plan(c, options);
    ASSERT_TRUE(plan.refusals.empty());
    const TempDir dir;
    std::vector<std::string> all;
    for (const int lanes : {1, 2, 5}) {
      plan.memory.lanes = lanes;
      const QuantJob job{.recipe = GetParam().recipe, .out = dir / fmt::format("out{}", lanes)};
      const QuantReport r = run_pipeline(ex, c, plan, windows, job);
      std::string& bytes = all.emplace_back(bytes_of_file(job.out / "model.safetensors"));
      for (const LinearRecord& l : r.linears)
        bytes += fmt::format("{} {} {} {} {}\n", l.name, l.hash, l.loss, l.rel_error, l.tokens);
      EXPECT_TRUE(bytes == all.front()) << lanes << " lanes";
    }
  }
};

TEST_P(ExpertLanes, GiveTheBytesOfOneAfterTheOther) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  Exec ex = Exec::cpu();
  expect_same_bytes(ex);
}

TEST_P(ExpertLanes, CudaGivesTheBytesOfOneAfterTheOther) {
  FEWBIT_NEEDS_GPU();
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  Exec ex = Exec::cuda(0);
  expect_same_bytes(ex);
}

INSTANTIATE_TEST_SUITE_P(Recipes, ExpertLanes,
                         ::testing::Values(Case{"TwoStreams", "gptq int4 g64 effort=quick"},
                                           Case{"Default", "gptq int4 g64"},
                                           Case{"OneStream", "gptq int4 g64 effort=quick targets=off"},
                                           Case{"StaticScales", "fp8 acts=tensor"},
                                           Case{"Rewritten", "awq+gptq int4 g64 effort=quick"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fewbit::test
