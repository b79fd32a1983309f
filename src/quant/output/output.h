#pragma once
// Ends the checkpoint in OUT.partial. Sealed blocks and everything that was not quantized are in shards (out_shards.h);
// config, tokenizer and whatever else the model directory holds travel along, with a model card.
#include "src/quant/journal/journal.h"
#include "src/quant/loop/quant_job.h"
#include "src/quant/output/out_shards.h"

namespace fewbit {

// The rest of a checkpoint whose report is complete: README.md, quant_report.json and SHA256SUMS in `dir`.
void write_report(const Checkpoint&, const QuantPlan&, const QuantJob&, const QuantReport&,
                  const std::filesystem::path& dir);

// All but that, into the folder kBuilt of journal.dir(), anew but for the shards that are there; the report learns the
// digests. `shards`: null where OUT is a single .gguf file.
void write_output(const Checkpoint&, const QuantPlan&, const Journal&, OutShards* shards, QuantReport&);

}  // namespace fewbit
