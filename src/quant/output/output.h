#pragma once
// Builds the finished checkpoint in OUT.partial. Sealed blocks and everything that was not quantized go into shards;
// config, tokenizer and whatever else the model directory holds travel along, with a model card.
#include "src/quant/loop/journal.h"
#include "src/quant/loop/quant_job.h"

namespace fewbit {

// README.md and quant_report.json in `dir`: of write_output(), and again when the report has learned more.
void write_report(const Checkpoint&, const QuantPlan&, const QuantJob&, const QuantReport&,
                  const std::filesystem::path& dir);

// Into the folder kBuilt of journal.dir(), anew.
void write_output(const Checkpoint&, const QuantPlan&, const Journal&, const QuantJob&, const QuantReport&);

}  // namespace fewbit
