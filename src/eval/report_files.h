#pragma once
// Reading the JSON files that a report is made from: quant_report.json, and those of `runner bench --json`.
#include <filesystem>
#include <string>
#include <utility>

#include "src/eval/report.h"

namespace fewbit {

// Recipe, bits, command and linears from the quant_report.json of a checkpoint, if it has one. Error{checkpoint} names
// the file where it is not made as `quantize` makes it.
void read_quant_report(const std::filesystem::path& checkpoint, ReportModel&);

// The model that a bench names, and its latency. Error{checkpoint} where the file is not the JSON of `runner bench`.
std::pair<std::string, ReportLatency> read_bench(const std::filesystem::path&);

}  // namespace fewbit
