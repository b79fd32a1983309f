#pragma once
// What tests share: the reference folder, random tensors, comparison with a coordinate.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "formats/container.h"
#include "kernels/exec/exec.h"
#include "src/core/tensor.h"

namespace fewbit::test {

// A file of the reference folder; a test that needs it begins with FEWBIT_NEEDS_REFERENCE(path).
std::filesystem::path reference(const std::string& relative);
#define FEWBIT_NEEDS_REFERENCE(relative)                             \
  if (!std::filesystem::exists(::fewbit::test::reference(relative))) \
  GTEST_SKIP() << "reference file absent: " << ::fewbit::test::reference(relative)

// A golden file opened as a container. get() copies a tensor to aligned host memory.
class Golden {
 public:
  explicit Golden(const std::string& relative);
  bool has(const std::string& name) const { return index_.tensors.count(name) > 0; }
  Tensor get(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  CheckpointIndex index_;
};

// Standard normal values * scale, keyed by (seed, name); f32, or rounded to `dtype`.
Tensor random_normal(DType dtype, Shape shape, uint64_t seed, float scale = 1);
Tensor to_f32(ConstTensorView host);  // any float dtype, host
Tensor poisoned(Exec& ex, DType dtype,
                Shape shape);  // NaN (or 0x7f bytes) everywhere, so an unwritten element fails

// ||a - b|| / ||b|| over f32 | f64 | bf16 | f16 host tensors; infinity when anything is NaN.
double relative_error(ConstTensorView a, ConstTensorView b);
// "" when equal byte for byte, else the first difference with its coordinate and both values.
std::string first_difference(ConstTensorView a, ConstTensorView b);

// Begins a test of CUDA, which says SKIPPED, with the reason, where no GPU answers (tests/support/devices.h).
#define FEWBIT_NEEDS_GPU()                                          \
  do {                                                              \
    std::string why;                                                \
    if (!::fewbit::Exec::cuda_available(&why)) GTEST_SKIP() << why; \
  } while (0)

// The whole of a file.
std::string bytes_of_file(const std::filesystem::path&);

// The message of the Error that `body` throws, whose kind must be `kind`; "" where it throws none.
std::string message_of(const std::function<void()>& body, ErrorKind kind);

// A fresh folder below the system's temporary directory, removed with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace fewbit::test
