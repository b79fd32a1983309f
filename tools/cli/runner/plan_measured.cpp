// Steps that `runner bench --json` measured, beside the floors of the same shapes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/run/bench/bench.h"
#include "tools/cli/runner/plan_args.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::json;

template <class T>
T value_of(const Json& j, const char* key, const std::string& file) {
  const auto it = j.find(key);
  if (it == j.end())
    fail(
        ErrorKind::usage,
        fmt::format("--measured {}: expected the key \"{}\" that `runner bench --json` writes, found none", file, key));
  try {
    return it->get<T>();
  } catch (const Json::exception& e) {
    fail(ErrorKind::usage, fmt::format("--measured {}: key \"{}\": {}", file, key, e.what()));
  }
}

MeasuredStep step_of(const Json& row, const ServedModel& m, ServingJob job, int64_t warmup, double read_gbs,
                     const std::string& file) {
  MeasuredStep s{.batch = value_of<int64_t>(row, "batch", file),
                 .ms = value_of<double>(value_of<Json>(row, "ms_per_token", file), "mean", file),
                 .bytes = value_of<double>(row, "bytes_per_token", file)};
  // The mean context of the timed steps, as the bench counts it.
  s.context = value_of<int64_t>(row, "prompt_tokens", file) + warmup + value_of<int64_t>(row, "tokens", file) / 2;
  job.context = s.context, job.concurrency = s.batch, job.prompt = 1;
  const ServingPlan p = plan_serving(m, job);
  s.plan_bytes = p.step.weight_bytes + p.step.cache_bytes;
  s.floor_ms = p.step.ms;
  s.read_floor_ms = s.plan_bytes / read_gbs / 1e6;
  s.expected_ms = p.expected_step_ms;
  return s;
}

}  // namespace

Measured measured_steps(const std::string& file, const ServedModel& m, const ServingJob& planned) {
  const Json j = parse_json(json_text(file, kRecordJson), file, kRecordJson);
  ServingJob job = planned;
  job.kv_cache = kv_type_from(value_of<std::string>(j, "kv_cache", file));
  job.head = head_type_from(value_of<std::string>(j, "head", file));
  job.tp = value_of<int>(j, "tp", file), job.pp = 1;
  const double read = value_of<double>(j, "read_gb_per_s", file);
  const int64_t warmup = j.contains("warmup") ? value_of<int64_t>(j, "warmup", file) : BenchOptions{}.warmup;
  Measured measured{.device = value_of<std::string>(j, "device", file), .steps = {}};
  if (const auto rows = j.find("rows"); rows != j.end())
    for (const Json& row : *rows) measured.steps.push_back(step_of(row, m, job, warmup, read, file));
  else
    measured.steps.push_back(step_of(j, m, job, warmup, read, file));
  return measured;
}

}  // namespace fewbit::cli
