#pragma once
// Reading the JSON files that a report is made from: quant_report.json, and those of `runner bench --json`.
#include <filesystem>
#include <string>

#include "src/eval/report.h"

namespace fewbit {

// Recipe, bits, command and linears from the quant_report.json of a checkpoint, if it has one. Error{checkpoint} names
// the file where it is not made as `quantize` makes it.
void read_quant_report(const std::filesystem::path& checkpoint, ReportModel&);

struct ReportBench {
  std::string model;  // that it names
  std::optional<ReportLatency> latency{};
  std::vector<ReportLoad> loads{};  // of a bench with --concurrency, in place of the latency
};
// Error{checkpoint} where the file is not the JSON of `runner bench`, with or without --concurrency.
ReportBench read_bench(const std::filesystem::path&);

}  // namespace fewbit
