#include "src/quant/loop/read_ahead.h"

#include <fcntl.h>

#include <map>
#include <vector>

#include "src/core/file_io.h"

namespace fewbit {

void read_ahead(const Checkpoint& c, int64_t layer) {
  const std::string prefix = c.spec.prefix(layer);
  const auto& tensors = c.store.index().tensors;
  std::map<int, std::vector<const TensorInfo*>> by_file;
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it)
    by_file[it->second.file].push_back(&it->second);
  for (const auto& [file, infos] : by_file) {
    const File open = File::with_flags(c.store.index().files[static_cast<size_t>(file)].path(), O_RDONLY);
    if (!open.open()) continue;
    for (const TensorInfo* t : infos) ::posix_fadvise(open.fd(), t->begin, t->bytes, POSIX_FADV_WILLNEED);
  }
}

}  // namespace fewbit
