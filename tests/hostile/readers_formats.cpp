#include <cstdlib>
#include <fstream>
#include <span>

#include "formats/containers/safetensors_file.h"
#include "src/core/error.h"
#include "tests/hostile/readers.h"

namespace fewbit::test {

std::filesystem::path put(const Scratch& scratch, const std::string& name, const std::string& bytes) {
  std::ofstream out(scratch / name, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) fail(ErrorKind::io, (scratch / name).string() + ": cannot write");
  return scratch / name;
}

void read_safetensors_bytes(const std::string& bytes, const Scratch&) {
  // Memory of its own, so that a sanitizer sees a byte too far.
  const std::vector<uint8_t> file(bytes.begin(), bytes.end());
  for (const TensorInfo& t : safetensors::parse(file, "hostile.safetensors").tensors)
    if (t.begin < 0 || t.begin + t.bytes > static_cast<int64_t>(file.size())) std::abort();
}

}  // namespace fewbit::test
