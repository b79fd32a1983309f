// `runner bench --compare A B`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/run/bench/bench_compare.h"
#include "tools/cli/runner/runner_commands.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string lines_of(const std::string& name, const ComparedModel& m) {
  const Spread& ms = m.ms_per_token;
  return fmt::format(
      "{}: loaded in {:.3f} s, {}\n"
      "  first token        {:.2f} ms\n"
      "  per token          {} ms   p50 {:.3f}  p90 {:.3f}  p95 {:.3f}  p99 {:.3f}\n"
      "  memory traffic     {} a step, {:.1f} GB/s = {:.1f} % of the measured read rate\n"
      "  steps              {}\n",
      name, m.load_s, join(m.kernels, ", "), m.ttft_ms.mean, with_error(ms.mean, ms.std, 3), ms.p50, ms.p90, ms.p95,
      ms.p99, human_bytes(m.bytes_per_token), m.gb_per_s, 100 * m.floor_share,
      steps_of(m.launches, m.why_not_together));
}

Json json_of(const Spread& s) {
  Json j;
  for (const auto& [key, value] : values_of(s)) j[key] = value;
  return j;
}

Json json_of(const std::string& name, const ComparedModel& m) {
  return {{"model", name},
          {"load_s", m.load_s},
          {"ttft_ms", m.ttft_ms.mean},
          {"ms_per_token", json_of(m.ms_per_token)},
          {"bytes_per_token", m.bytes_per_token},
          {"gb_per_s", m.gb_per_s},
          {"floor_share", m.floor_share},
          {"steps", name_of(m.launches)},
          {"one_launch", m.launches == StepLaunches::together},
          {"why_op_by_op", why_op_by_op(m)},
          {"kernels", m.kernels},
          {"notes", m.notes}};
}

}  // namespace

void run_comparison(const BenchArgs& a) {
  const std::string &first = a.compare[0], &second = a.compare[1];
  const BenchShape& shape = a.options.shapes[0];
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const BenchComparison r =
      compare_speed(ex, first, second, a.options, [&](const std::string& p, double f) { progress.update(p, f); });
  progress.update("done", 1);
  say(a.common, fmt::format("on {}: batch {}, {} prompt tokens, {} tokens, {} cache, {}, in turn\n{}{}", r.device,
                            shape.batch, shape.prompt_tokens, shape.tokens, a.kv_cache, head_and_acts(a.head, a.acts),
                            lines_of("A " + first, r.first), lines_of("B " + second, r.second)));
  const std::string first_token = a.options.repetitions > 1 ? with_error(r.ttft.value, r.ttft.stderr_, 4)
                                                            : fmt::format("{:.4f} (one repetition)", r.ttft.value);
  say(a.common, fmt::format("B / A: per token {}, first token {} (below 1: B is faster)\n",
                            with_error(r.step.value, r.step.stderr_, 4), first_token));
  for (const ComparedModel* m : {&r.first, &r.second})
    for (const std::string& note : m->notes)
      say(a.common, fmt::format("note: {}: {}\n", m == &r.first ? "A" : "B", note));
  const Json j = {{"a", json_of(first, r.first)},
                  {"b", json_of(second, r.second)},
                  {"ratio", r.step.value},
                  {"ratio_stderr", r.step.stderr_},
                  {"ttft_ratio", r.ttft.value},
                  {"ttft_ratio_stderr", r.ttft.stderr_},
                  {"copy_gb_per_s", r.memory.copy_gb_per_s},
                  {"read_gb_per_s", r.memory.read_gb_per_s},
                  {"peak_bytes", r.peak_bytes},
                  {"device", r.device},
                  {"dtype", a.dtype},
                  {"kv_cache", a.kv_cache},
                  {"head", a.head},
                  {"acts", a.acts},
                  {"batch", shape.batch},
                  {"prompt_tokens", shape.prompt_tokens},
                  {"tokens", shape.tokens},
                  {"repetitions", a.options.repetitions}};
  write_json(a.common, j.dump(1) + "\n");
}

}  // namespace fewbit::cli
