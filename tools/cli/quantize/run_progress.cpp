#include "tools/cli/quantize/run_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "src/core/host_memory.h"
#include "src/core/strings.h"
#include "src/quant/output/report.h"
#include "tools/cli/ranks.h"

namespace fewbit::cli {
namespace {

std::string linear_line(const LinearRecord& r) {
  if (r.lossless) return fmt::format("{}: {}, codes unchanged, {}", r.name, r.recipe, human_seconds(r.seconds));
  return fmt::format("{}: {}, relative error {:.4f}, SQNR {:.1f} dB{}, {}", r.name, r.recipe, r.rel_error, r.sqnr_db,
                     r.rung.empty() || r.rung == "fp32" ? "" : ", rung " + r.rung, human_seconds(r.seconds));
}

std::string progress_detail(const Exec& ex, int64_t block, int64_t blocks, const std::string& phase) {
  return fmt::format("block {} of {}, {}, {}{}", block, blocks, phase, human_bytes(resident_memory().now),
                     ex.on_cuda() ? fmt::format(" and GPU {}", human_bytes(ex.peak_bytes())) : "");
}

}  // namespace

void show_progress(const Common& common, const Checkpoint& c, const Exec& ex, Progress& progress, QuantJob& job) {
  const auto phase = std::make_shared<std::string>();
  job.entered = [phase](const std::string& now) { *phase = now; };
  job.progress = [&progress, &ex, phase, blocks = c.spec.layers](const std::string& what, double f) {
    const auto block = std::min(static_cast<int64_t>(f * static_cast<double>(blocks)) + 1, blocks);
    if (!phase->empty()) reach_place(fmt::format("block {} of {}", block, blocks));
    progress.update(what, f, phase->empty() ? "" : progress_detail(ex, block, blocks, *phase));
  };
  if (common.verbose && the_ranks().rank() == 0)
    job.coded = [&progress](const LinearRecord& r) {
      progress.clear();
      fmt::print(stderr, "{}\n", linear_line(r));
    };
}

}  // namespace fewbit::cli
