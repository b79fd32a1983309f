#pragma once
// Output: the finished checkpoint. Sealed blocks and everything that was not quantized go into shards;
// config, tokenizer and whatever else the model directory holds travel along, with a model card; OUT appears by
// one rename.
#include "src/quant/journal.h"
#include "src/quant/pipeline.h"

namespace fewbit {

void write_output(const Checkpoint&, const QuantPlan&, const Journal&, const QuantJob&, const QuantReport&);

}  // namespace fewbit
