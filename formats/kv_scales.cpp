// Reads the spellings that other tools write: compressed-tensors (and ours), ModelOpt, and the old
// llm-compressor's output_scale.
#include "formats/kv_scales.h"

#include <cmath>

#include "src/core/error.h"
#include "src/core/half.h"

namespace fewbit {
namespace {

float element(ConstTensorView t, int64_t i) {
  switch (t.dtype) {
    case DType::f32:
      return t.as<float>()[i];
    case DType::f16:
      return t.as<f16>()[i];
    case DType::bf16:
      return t.as<bf16>()[i];
    default:
      return NAN;
  }
}

std::vector<float> values_of(ConstTensorView t, const std::string& name, int64_t kv_heads) {
  if (t.numel() != 1 && t.numel() != kv_heads)
    fail(ErrorKind::checkpoint, "tensor '" + name + "': expected one scale or one for each of " +
                                    std::to_string(kv_heads) + " heads, found " + t.shape.str());
  std::vector<float> values;
  for (int64_t i = 0; i < t.numel(); ++i) {
    values.push_back(element(t, i));
    if (!(values.back() > 0) || !std::isfinite(values.back()))
      fail(ErrorKind::checkpoint, "tensor '" + name + "': expected positive scales (f32, f16 or bf16), found " +
                                      std::to_string(values.back()) + " of type " + std::string(name_of(t.dtype)));
  }
  return values;
}

// The spellings for `which` ("k" or "v"), in the order in which they are looked for.
std::vector<std::string> spellings(const std::string& name, const std::string& which) {
  const std::string projection = name + '.' + which + "_proj.";
  return {name + '.' + which + "_scale", projection + which + "_scale", projection + "output_scale"};
}

// The first tensor that exists of the spellings for `which` ("k" or "v"); empty where there is none.
std::vector<float> find(const std::string& name, const std::string& which, int64_t kv_heads,
                        const TensorSource& tensor) {
  for (const std::string& spelling : spellings(name, which))
    if (const ConstTensorView t = tensor(spelling); t.data) return values_of(t, spelling, kv_heads);
  return {};
}

Tensor tensor_of(const std::vector<float>& scales) {
  const auto n = static_cast<int64_t>(scales.size());
  return Tensor::host_from<float>(DType::f32, n == 1 ? Shape{1} : Shape{n, 1, 1}, scales);
}

}  // namespace

std::vector<std::string> kv_scale_names(const std::string& name) {
  std::vector<std::string> names = spellings(name, "k");
  for (std::string& v : spellings(name, "v")) names.push_back(std::move(v));
  return names;
}

std::optional<KvScales> read_kv_scales(const std::string& name, int64_t kv_heads, const TensorSource& tensor) {
  KvScales s{.k = find(name, "k", kv_heads, tensor), .v = find(name, "v", kv_heads, tensor)};
  if (s.k.empty() && s.v.empty()) return std::nullopt;
  if (s.k.empty()) s.k = s.v;
  if (s.v.empty()) s.v = s.k;
  return s;
}

std::vector<NamedTensor> kv_scale_tensors(const std::string& name, const KvScales& scales) {
  std::vector<NamedTensor> out;
  out.push_back({name + ".k_scale", tensor_of(scales.k)});
  out.push_back({name + ".v_scale", tensor_of(scales.v)});
  return out;
}

}  // namespace fewbit
