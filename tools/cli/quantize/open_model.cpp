#include "tools/cli/quantize/open_model.h"

#include <utility>

#include "src/model/checkpoint_parts.h"
#include "src/model/lora.h"
#include "src/model/rotation/rotation.h"

namespace fewbit::cli {

Checkpoint open_model(const std::filesystem::path& model, const Recipe& recipe, const std::string& lora,
                      const std::vector<std::string>& drop, std::string& adapter, std::vector<std::string>& dropped) {
  Checkpoint c = Checkpoint::open(model);
  if (!lora.empty()) c = with_adapter(std::move(c), lora, adapter);
  if (!drop.empty()) c = without_tensors(std::move(c), drop, dropped);
  return turned_for(std::move(c), recipe);
}

Checkpoint turned_for(Checkpoint c, const Recipe& recipe) {
  return recipe.rotates ? with_rotation(std::move(c), recipe.rotation_seed.value_or(0)) : std::move(c);
}

}  // namespace fewbit::cli
