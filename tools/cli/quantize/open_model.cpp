#include "tools/cli/quantize/open_model.h"

#include <utility>

#include "src/model/checkpoint_parts.h"
#include "src/model/lora.h"

namespace fewbit::cli {

Checkpoint open_model(const std::filesystem::path& model, const std::string& lora, const std::vector<std::string>& drop,
                      std::string& adapter, std::vector<std::string>& dropped) {
  Checkpoint c = Checkpoint::open(model);
  if (!lora.empty()) c = with_adapter(std::move(c), lora, adapter);
  if (!drop.empty()) c = without_tensors(std::move(c), drop, dropped);
  return c;
}

}  // namespace fewbit::cli
