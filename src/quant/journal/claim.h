#pragma once
// Who may write OUT: what is refused before anything is computed, and the claim that keeps every other run away.
#include "src/quant/journal/run_folder.h"
#include "src/quant/loop/quant_job.h"

namespace fewbit {

// Error where OUT overlaps the model, exists (unless force), cannot be replaced, has no parent folder, or where its
// .partial is in use or not a run's. A run that ended between its last record and its last rename gets it now.
void check_out(const std::filesystem::path& model, const QuantJob&);

// For --resume: OUT is finished and nothing of a run is left. Error{usage} where it is finished by another recipe.
bool finished_already(const QuantJob&);

// check_out(), and OUT.partial as a run with this job may have it: empty but for the mark, or, to resume, as it was
// left. Error{usage} for an unfinished run when neither job.resume nor job.restart is set.
RunFolder claim_out(const std::filesystem::path& model, const QuantJob&);

}  // namespace fewbit
