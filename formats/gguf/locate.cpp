#include "formats/gguf/locate.h"

#include <algorithm>
#include <vector>

#include "src/core/error.h"

namespace fewbit::gguf {

namespace fs = std::filesystem;

std::optional<fs::path> locate(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) {
    if (path.extension() == ".gguf" && fs::is_regular_file(path, ec)) return path;
    return std::nullopt;
  }
  std::vector<fs::path> found;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".safetensors") return std::nullopt;
    if (it->path().extension() == ".gguf") found.push_back(it->path());
  }
  if (found.empty()) return std::nullopt;
  std::sort(found.begin(), found.end());
  if (found.size() > 1)
    fail(ErrorKind::checkpoint, path.string() + ": expected one .gguf file, found " + std::to_string(found.size()) +
                                    " (" + found[0].filename().string() + ", " + found[1].filename().string() +
                                    " …); name the file itself");
  return found[0];
}

}  // namespace fewbit::gguf
