#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "src/model/checkpoint.h"
#include "src/quant/plan/recipe.h"

namespace fewbit::cli {

// MODEL with the adapter of --lora merged ("" = none; `adapter` gets its digest) and without the tensors that --drop
// names
// (`dropped` gets theirs), turned as the recipe says.
Checkpoint open_model(const std::filesystem::path& model, const Recipe&, const std::string& lora,
                      const std::vector<std::string>& drop, std::string& adapter, std::vector<std::string>& dropped);

// The checkpoint turned as the recipe says, which may be not at all.
Checkpoint turned_for(Checkpoint, const Recipe&);

}  // namespace fewbit::cli
