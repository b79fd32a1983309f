// The registry of containers: one entry per line of containers.def.
#include "formats/container.h"
#include "src/core/error.h"

namespace fewbit {

ConstTensorView CheckpointIndex::view(const TensorInfo& t) const {
  FEWBIT_ASSERT(t.file >= 0 && static_cast<size_t>(t.file) < files.size());
  return {files[static_cast<size_t>(t.file)].at(t.begin, t.bytes), t.dtype, t.shape, {}};
}

const std::vector<const Container*>& containers() {
  static const std::vector<const Container*> all = {
#define FEWBIT_CONTAINER(id) &container_##id,
#include "formats/containers.def"
#undef FEWBIT_CONTAINER
  };
  return all;
}

const Container& container_for(const std::filesystem::path& dir_or_file) {
  std::string known;
  for (const Container* c : containers()) {
    if (c->probe(dir_or_file)) return *c;
    if (!known.empty()) known += "; ";
    known += std::string(c->name) + " (" + std::string(c->summary) + ")";
  }
  std::error_code ignored;
  if (!std::filesystem::exists(dir_or_file, ignored))
    fail(ErrorKind::io, dir_or_file.string() + ": no such file or folder");
  fail(ErrorKind::checkpoint, dir_or_file.string() + ": no model weights found here; looked for " + known);
}

}  // namespace fewbit
