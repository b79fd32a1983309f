#pragma once
// From checkpoints and their comparisons to a report's files: what `report` and `sweep` have in common.
#include "src/eval/report.h"
#include "tools/cli/evaluate/compare_models.h"

namespace fewbit::cli {

struct ReportFiles {
  std::string html, markdown, svg, title;
  std::vector<std::string> benches;
};
void add_report_arguments(CLI::App& app, ReportFiles& files);

// The report without its models: text, protocol, baseline.
Report begin_report(const CompareArgs&, const ReportFiles&, const Baseline&, const Exec&, const DivergenceResult& any);
// Size, recipe and the errors of the linears from the checkpoint and its quant_report.json, if it has one.
ReportModel report_model(const Checkpoint&, const DivergenceResult&);
// Error{checkpoint} for a --bench file that is none, before any work begins.
void check_benches(const ReportFiles&);
// Latencies from those files, told apart by the model they name. Error{usage} for one that is not in the
// report.
void add_latencies(Report&, const ReportFiles&, const std::vector<std::string>& model_paths);
// Writes what was asked for and the JSON, and prints the table.
void write_report(const CompareArgs&, const ReportFiles&, const Report&);

}  // namespace fewbit::cli
