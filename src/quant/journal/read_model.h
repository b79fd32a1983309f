#pragma once
// The first reading of the model: its files' digests, which the run's identity holds, and what is not finite.
#include "src/model/checkpoint.h"
#include "src/model/sources/sources_ahead.h"
#include "src/quant/journal/run_folder.h"
#include "src/quant/loop/quant_job.h"

namespace fewbit {

// Fills job.sources from a record of the run, of `user` (a folder, or ""), or by reading; from `ahead` where that has
// begun to read them. Error{checkpoint} that names the tensors with NaN or infinities; with job.allow_nonfinite they
// become a note.
void read_model(const Checkpoint&, const RunFolder&, const std::filesystem::path& user, QuantJob&,
                SourcesAhead* ahead = nullptr);

}  // namespace fewbit
