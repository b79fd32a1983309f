#include "tools/cli/runner/measure.h"

namespace fewbit::cli {

ScoredWindows windows_to_measure(const Common& common, const Checkpoint& model) {
  DataArgs args;
  args.common = common;
  return load_windows(args, model);
}

MeasuredPerplexity measure_perplexity(Exec& ex, const Common& common, const ScoredWindows& windows,
                                      const Checkpoint& model, const std::filesystem::path& out, Progress& progress) {
  DataArgs args;
  args.common = common;
  const auto measure = [&](const Checkpoint& c, const char* what) {
    Runner runner(ex, c, args.load());
    return perplexity(runner, windows, args.tokens_per_pass(ex), report_to(progress, what));
  };
  const PerplexityResult base = measure(model, "measuring MODEL"),
                         found = measure(Checkpoint::open(out), "measuring OUT");
  return {.base = base.perplexity,
          .base_stderr = base.stderr_,
          .perplexity = found.perplexity,
          .stderr_ = found.stderr_,
          .data = windows.windows.source,
          .protocol = std::string(name_of(windows.protocol)),
          .dtype = args.dtype,
          .windows = found.windows,
          .context = found.context};
}

}  // namespace fewbit::cli
