#include "tools/cli/quantize/open_model.h"

#include <algorithm>
#include <utility>

#include "src/core/parallel.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/lora.h"
#include "src/model/rotation/rotation.h"
#include "src/quant/journal/run_folder.h"
#include "src/quant/output/out_folder.h"

namespace fewbit::cli {

Checkpoint open_model(const std::filesystem::path& model, const Recipe& recipe, const std::string& lora,
                      const std::vector<std::string>& drop, std::string& adapter, std::vector<std::string>& dropped) {
  Checkpoint c = Checkpoint::open(model);
  if (!lora.empty()) c = with_adapter(std::move(c), lora, adapter);
  if (!drop.empty()) c = without_tensors(std::move(c), drop, dropped);
  return turned_for(std::move(c), recipe);
}

Checkpoint turned_for(Checkpoint c, const Recipe& recipe) {
  if (!recipe.rotates) return c;
  // Values that heads have mixed have no features left that scales could even out.
  const bool balances = std::count(recipe.chain.begin(), recipe.chain.end(), transform_balance.name) > 0;
  return with_rotation(std::move(c), recipe.rotation_seed.value_or(0), {}, !balances);
}

std::unique_ptr<SourcesAhead> read_ahead(const Common& common, const Checkpoint& c, const QuantJob& job) {
  if (job.ranks->rank() != 0 || common.device == "cpu" || !Exec::cuda_available()) return nullptr;
  use_threads(common);
  return std::make_unique<SourcesAhead>(
      c.dir, SourceReading{.run = partial_of(place_of(job.out)), .user = user_cache_folder(), .rehash = job.rehash});
}

}  // namespace fewbit::cli
