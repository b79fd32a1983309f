#pragma once
// Models in the cache of the Hugging Face hub: models--ORG--NAME with refs/ and snapshots/ of links to blobs/.
#include <filesystem>

namespace fewbit {

// The folder that holds the checkpoint: of "hf-cache:ORG/NAME" (or "hf-cache:ORG/NAME@REVISION", a branch or a hash)
// the snapshot in the cache, which HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME place, else ~/.cache/huggingface/hub; of a
// folder models--ORG--NAME the snapshot of its refs/main, or its only one. Any other path is returned as it is.
// Error{io} that names the places looked at; Error{usage} where several snapshots could be meant.
std::filesystem::path hub_folder(const std::filesystem::path& model);

}  // namespace fewbit
