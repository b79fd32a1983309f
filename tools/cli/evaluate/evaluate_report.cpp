// `evaluate report OUT…`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "tools/cli/evaluate/report_models.h"

namespace fewbit::cli {
namespace {

struct ReportArgs : CompareArgs {
  ReportFiles files;
};

// --base, else the model that the first OUT was made from.
std::string base_of(const ReportArgs& a) {
  if (!a.base.empty()) return a.base;
  for (const std::string& out : a.models) {
    const std::filesystem::path report = std::filesystem::path(out) / "quant_report.json";
    std::error_code ignored;
    if (!std::filesystem::exists(report, ignored)) continue;
    const auto j = parse_json(json_text(report, kTableJson), report.string(), kTableJson);
    std::string model;
    take_apart(report.string(), [&] { model = j.value("model", ""); });
    if (std::filesystem::exists(model, ignored)) return model;
  }
  fail(ErrorKind::usage, "none of the checkpoints names the model it was made from, or it is gone; give --base MODEL");
}

void run_report(ReportArgs a) {
  a.load();  // refuses unknown names before anything is opened
  check_benches(a.files);
  a.base = base_of(a);
  const Checkpoint base_checkpoint = Checkpoint::open(a.base);
  Baseline base(a, base_checkpoint);
  std::vector<Checkpoint> models;
  for (const std::string& m : a.models) models.push_back(open_for_comparison(a, base, m));
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  base.load(ex, progress);
  Report report;
  for (const Checkpoint& m : models) {
    const DivergenceResult r = compare_with(ex, a, base, m, progress);
    if (report.models.empty()) report = begin_report(a, a.files, base, ex, r);
    report.models.push_back(report_model(m, r));
  }
  add_latencies(report, a.files, a.models);
  progress.update("done", 1);
  write_report(a, a.files, report);
}

}  // namespace

void add_report_command(CLI::App& app) {
  const auto a = std::make_shared<ReportArgs>();
  CLI::App* command =
      app.add_subcommand("report", "Checkpoints beside their baseline as one HTML page and as Markdown");
  command->add_option("OUT", a->models, "Checkpoints")->required();
  command->add_option("--base", a->base, "The baseline (left out: the model that the first OUT was made from)");
  command->add_option("--base-cache", a->base_cache, "DIR: as of `evaluate compare`");
  add_report_arguments(*command, a->files);
  add_data_arguments(*command, *a);
  command->callback([a] { run_report(*a); });
}

}  // namespace fewbit::cli
