#include "tests/support/support.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "src/core/half.h"
#include "src/core/rng.h"
#include "tests/support/paths.h"

namespace fewbit::test {

std::filesystem::path reference(const std::string& relative) {
  return std::filesystem::path(reference_dir()) / relative;
}

Golden::Golden(const std::string& relative) : index_(container_safetensors.open(reference(relative))) {}

Tensor Golden::get(const std::string& name) const {
  const auto it = index_.tensors.find(name);
  if (it == index_.tensors.end()) fail(ErrorKind::checkpoint, "golden lacks tensor " + name);
  return clone_host(index_.view(it->second));
}

std::vector<std::string> Golden::names() const {
  std::vector<std::string> out;
  for (const auto& [name, unused] : index_.tensors) out.push_back(name);
  return out;
}

Tensor random_normal(DType dtype, Shape shape, uint64_t seed, float scale) {
  const Rng rng(seed, "random_normal");
  Tensor t = Tensor::host(dtype, shape);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const float v = static_cast<float>(rng.normal_at(static_cast<uint64_t>(i))) * scale;
    switch (dtype) {
      case DType::f32:
        t.as<float>()[i] = v;
        break;
      case DType::bf16:
        t.as<bf16>()[i] = v;
        break;
      case DType::f16:
        t.as<f16>()[i] = v;
        break;
      default:
        bug("random_normal: float dtypes only");
    }
  }
  return t;
}

Tensor to_f32(ConstTensorView v) {
  Tensor t = Tensor::host(DType::f32, v.shape);
  for (int64_t i = 0; i < v.numel(); ++i) switch (v.dtype) {
      case DType::f32:
        t.as<float>()[i] = v.as<float>()[i];
        break;
      case DType::f64:
        t.as<float>()[i] = static_cast<float>(v.as<double>()[i]);
        break;
      case DType::bf16:
        t.as<float>()[i] = v.as<bf16>()[i];
        break;
      case DType::f16:
        t.as<float>()[i] = v.as<f16>()[i];
        break;
      default:
        bug("to_f32: float dtypes only");
    }
  return t;
}

Tensor poisoned(Exec& ex, DType dtype, Shape shape) {
  Tensor host = Tensor::host(dtype, shape);
  std::memset(host.view().data, 0xff, static_cast<size_t>(host.bytes()));  // a NaN in every float type
  return ex.to_device(host);
}

double relative_error(ConstTensorView a, ConstTensorView b) {
  if (!(a.shape == b.shape)) return std::numeric_limits<double>::infinity();
  const Tensor fa = to_f32(a), fb = to_f32(b);
  double diff = 0, norm = 0;
  for (int64_t i = 0; i < fa.numel(); ++i) {
    const double x = fa.as<float>()[i], y = fb.as<float>()[i];
    if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<double>::infinity();
    diff += (x - y) * (x - y);
    norm += y * y;
  }
  return norm > 0 ? std::sqrt(diff / norm) : std::sqrt(diff);
}

std::string first_difference(ConstTensorView a, ConstTensorView b) {
  if (a.dtype != b.dtype || !(a.shape == b.shape))
    return std::string(name_of(a.dtype)) + a.shape.str() + " against " + std::string(name_of(b.dtype)) + b.shape.str();
  const auto* pa = static_cast<const uint8_t*>(a.data);
  const auto* pb = static_cast<const uint8_t*>(b.data);
  for (int64_t i = 0; i < a.bytes(); ++i) {
    if (pa[i] == pb[i]) continue;
    int64_t element = i / bytes_of(a.dtype);
    std::string where;
    for (int d = a.shape.rank() - 1; d >= 0; --d) {
      where = (d ? ", " : "") + std::to_string(element % a.shape[d]) + where;
      element /= a.shape[d];
    }
    char values[48];
    std::snprintf(values, sizeof values, ": byte %02x against %02x", pa[i], pb[i]);
    return "first difference at [" + where + "]" + values;
  }
  return "";
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "fewbit-test-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) fail(ErrorKind::io, "cannot make a temporary folder");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string bytes_of_file(const std::filesystem::path& p) {
  std::ifstream in(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string message_of(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "";
}

}  // namespace fewbit::test
