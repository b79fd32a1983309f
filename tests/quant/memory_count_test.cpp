// What the plan says of a GPU's memory, confirmed by the allocator on the CPU: the same types, all states on disk.
// scripts/count_memory does it for a model of any size.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/quantize/factor.h"
#include "kernels/statistics/gram_lanes.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

// A window that is a chunk of its own on a GPU and on the CPU.
constexpr int64_t kWindows = 1, kLength = gram_chunk(Device::cuda);

TEST(CountedMemory, IsWhatThePlanOfAGpuSays) {
  const TempDir dir;
  synthesize(dir / "tiny", {.preset = "tiny"}, {});
  nlohmann::json config = nlohmann::json::parse(std::ifstream(dir / "tiny/config.json"));
  config["hidden_size"] = 768;
  config["intermediate_size"] = 2048;
  config["num_hidden_layers"] = 1;
  synthesize(dir / "model", {.config = config.dump()}, {});
  const Checkpoint c = Checkpoint::open(dir / "model");
  PlanOptions o{.base = parse_recipe("gptq int4 g128 effort=quick"),
                .tokens = kWindows * kLength,
                .seq_len = kLength,
                .dtype = DType::bf16};
  o.limits.host = 1;
  o.limits.host = make_plan(c, o).memory.least_host;
  const QuantPlan on_cpu = make_plan(c, o);
  o.on_gpu = true;
  o.limits = {.device = 1};
  int64_t planned = 0, counted = 0;
  for (const PhaseMemory& p : make_plan(c, o).memory.phases) planned = std::max(planned, p.device);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kWindows * kLength; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % c.spec.vocab));
  Exec ex = Exec::cpu();
  const QuantReport r = run_pipeline(ex, c, on_cpu, windows_from_ids(std::move(ids), kWindows, kLength, "made"),
                                     {.recipe = "gptq", .out = dir / "out", .dtype = DType::bf16});
  EXPECT_GT(r.scratch_bytes, 0);
  // What a CPU does not have: the matrix that shifts the targets of linears which share an input, and the blocks of the
  // solver (kernels/quantize/factor.h), of the widest linear, `down`; the streams of the sums.
  const int64_t solver =
      shift_bytes(Device::cuda, 768, 2048) - 8 * 2048 * 2048 - square_cut_bytes(Device::cuda, 768, 2048);
  for (const auto& [phase, bytes] : r.phase_peaks) {
    const bool sums = phase == "forward" || phase == "observe";  // are there while a chunk comes, too
    counted = std::max(counted, bytes + (phase == "quantize" ? solver : sums ? GramLanes::kBytes : 0));
  }
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(planned),
              static_cast<double>(planned) * tol::kPlannedMemory);
}

}  // namespace
}  // namespace fewbit::test
