// Reads a checkpoint by fewbit's formats: every tensor with its type, shape and first value, and what says the files
// are broken. Usage: read_checkpoint FOLDER
#include <cstdio>
#include <cstring>
#include <string>

#include "formats/container.h"
#include "src/core/error.h"
#include "src/core/half.h"

namespace {

// The first value of a float tensor; what lies in a file may be unaligned.
template <class T>
double first_as(const fewbit::ConstTensorView& t) {
  T value;
  std::memcpy(&value, t.data, sizeof value);
  return static_cast<float>(value);
}
double first_of(const fewbit::ConstTensorView& t) {
  if (t.dtype == fewbit::DType::bf16) return first_as<fewbit::bf16>(t);
  if (t.dtype == fewbit::DType::f16) return first_as<fewbit::f16>(t);
  return t.dtype == fewbit::DType::f32 ? first_as<float>(t) : 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: read_checkpoint FOLDER\n"), 2;
  const fewbit::CheckpointIndex index = fewbit::container_for(argv[1]).open(argv[1]);
  for (const auto& [name, info] : index.tensors)
    std::printf("%s %s %s %g\n", name.c_str(), std::string(fewbit::name_of(info.dtype)).c_str(),
                info.shape.str().c_str(), first_of(index.view(info)));
  return 0;
} catch (const fewbit::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return e.exit_code();
}
