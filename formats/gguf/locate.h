#pragma once
// Which file a path means.
#include <filesystem>
#include <optional>

namespace fewbit::gguf {

// The .gguf file that `path` is, or that is the only one in the folder `path`, where that holds no
// safetensors; nothing otherwise. Error{checkpoint} for a folder with several.
std::optional<std::filesystem::path> locate(const std::filesystem::path& path);

}  // namespace fewbit::gguf
