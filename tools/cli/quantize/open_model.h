#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/model/checkpoint.h"
#include "src/model/sources/sources_ahead.h"
#include "src/quant/loop/quant_job.h"
#include "src/quant/plan/recipe.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

// MODEL with the adapter of --lora merged ("" = none; `adapter` gets its digest) and without the tensors that --drop
// names
// (`dropped` gets theirs), turned as the recipe says.
Checkpoint open_model(const std::filesystem::path& model, const Recipe&, const std::string& lora,
                      const std::vector<std::string>& drop, std::string& adapter, std::vector<std::string>& dropped);

// The checkpoint turned as the recipe says, which may be not at all.
Checkpoint turned_for(Checkpoint, const Recipe&);

// Begins to read the model for the job, while a GPU gets ready. Null without one, and on ranks but the first.
std::unique_ptr<SourcesAhead> read_ahead(const Common&, const Checkpoint&, const QuantJob&);

}  // namespace fewbit::cli
