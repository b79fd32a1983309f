// `runner bench [MODEL] --ops --explain [--sm N]`: which kernel a shape takes, and why.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/run/bench/ops_explain.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/table.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

const KnownGpu& gpu_of(int capability) {
  std::string known;
  for (const KnownGpu& g : known_gpus()) {
    if (g.traits.capability == capability) return g;
    known += fmt::format(" {}", g.traits.capability);
  }
  fail(ErrorKind::usage, fmt::format("--sm: no such compute capability: {}; known:{}", capability, known));
}

std::string rows_of(const ExplainedRows& r) {
  if (r.last == kMostExplainedRows) return fmt::format("{} and more", r.first);
  return r.first == r.last ? fmt::format("{}", r.first) : fmt::format("{} to {}", r.first, r.last);
}

std::string table_of(const std::vector<ExplainedRows>& rows, bool markdown) {
  std::vector<std::vector<std::string>> lines = {{"model", "op", "type", "in", "out", "rows", "kernel", "file"}};
  const auto count = [](int64_t n) { return n > 0 ? fmt::format("{}", n) : ""; };
  for (const ExplainedRows& r : rows)
    lines.push_back({r.model, r.op, r.type, count(r.in), count(r.out), rows_of(r), r.rule->name,
                     fmt::format("kernels/{}", r.rule->file)});
  return table(lines, markdown, lines[0].size());
}

// How each kernel of the rows works, once, in the order in which the rules are asked.
std::string legend_of(const std::vector<ExplainedRows>& rows, bool markdown) {
  std::string s;
  for (const KernelRule& rule : kernel_rules()) {
    const auto taken = [&](const ExplainedRows& r) { return r.rule == &rule; };
    if (std::any_of(rows.begin(), rows.end(), taken))
      s += fmt::format("{}{} ({}): {}\n", markdown ? "- " : "", rule.name, rule.types, rule.when);
  }
  return s;
}

Json json_of(const KnownGpu& gpu, const std::vector<ExplainedRows>& rows) {
  Json j = {{"gpu", gpu.name},
            {"sm", gpu.traits.capability},
            {"multiprocessors", gpu.traits.sms},
            {"shared_bytes", gpu.traits.max_shared},
            {"rows", Json::array()},
            {"rules", Json::array()}};
  for (const ExplainedRows& r : rows)
    j["rows"].push_back({{"model", r.model},
                         {"op", r.op},
                         {"type", r.type},
                         {"in", r.in > 0 ? Json(r.in) : Json()},
                         {"out", r.out > 0 ? Json(r.out) : Json()},
                         {"first_rows", r.first},
                         {"last_rows", r.last < kMostExplainedRows ? Json(r.last) : Json()},
                         {"kernel", r.rule->name},
                         {"file", fmt::format("kernels/{}", r.rule->file)},
                         {"how", r.rule->when}});
  for (const KernelRule& r : kernel_rules())
    j["rules"].push_back({{"op", name_of(r.op)},
                          {"types", r.types},
                          {"rows", r.rows},
                          {"gpu", r.gpu},
                          {"kernel", r.name},
                          {"file", fmt::format("kernels/{}", r.file)},
                          {"how", r.when}});
  return j;
}

}  // namespace

void explain_kernels(const BenchArgs& a, const std::vector<OpsModel>& models) {
  const KnownGpu& gpu = gpu_of(a.sm);
  const std::vector<ExplainedRows> rows = explain_ops(models, gpu.traits);
  const std::string title = fmt::format("Kernels on sm_{} ({}: {} multiprocessors, {} KiB of shared memory a block)",
                                        a.sm, gpu.name, gpu.traits.sms, gpu.traits.max_shared / 1024);
  say(a.common, title + "\n" + table_of(rows, false) + "\n" + legend_of(rows, false));
  write_text(a.common, a.markdown, title + ".\n\n" + table_of(rows, true) + "\n" + legend_of(rows, true));
  write_json(a.common, json_of(gpu, rows).dump(1) + "\n");
}

}  // namespace fewbit::cli
