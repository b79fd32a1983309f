#pragma once
// Random linears over every grid, and packed ones as a checkpoint gives them, for tests over the registry of
// packings.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats/packing.h"
#include "src/core/rng.h"
#include "tests/support/support.h"

namespace fewbit::test {

enum class Order { consecutive, shuffled };

// Random codes, scales (negative ones where the type has a sign) and zeros over the whole grid; FP8 codes
// without the two NaNs.
inline QuantizedLinear random_linear(const QuantSpec& spec, int64_t out, int64_t in, Order order) {
  Rng rng(7, spec.str() + std::to_string(out) + "x" + std::to_string(in));
  QuantizedLinear q;
  q.spec = spec;
  const int64_t groups = spec.groups(in);
  const auto levels = static_cast<uint64_t>(spec.max_code()) + 1;
  const bool fp8 = spec.grid == Grid::f8_e4m3;
  q.codes = Tensor::host(DType::u8, {out, in});
  for (int64_t i = 0; i < out * in; ++i) {
    const auto code = static_cast<uint8_t>(rng.below(levels));
    q.codes.as<uint8_t>()[i] = fp8 && (code & 0x7f) == 0x7f ? 0x7e : code;
  }
  if (spec.activations == ActQuant::tensor) q.input_scale = 0.125;
  if (spec.two_level()) q.global_scale = 0.0078125;
  q.scales = Tensor::host(DType::f32, {(out + spec.out_group - 1) / spec.out_group, groups});
  for (int64_t i = 0; i < q.scales.numel(); ++i)
    q.scales.as<float>()[i] = representable_scale(static_cast<float>(rng.normal()), spec.scale_dtype);
  if (!spec.symmetric) {
    q.zeros = Tensor::host(DType::u8, {out, groups});
    for (int64_t i = 0; i < out * groups; ++i) q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(levels));
  }
  if (order == Order::shuffled) {
    q.group_of = Tensor::host(DType::i32, {in});
    for (int64_t k = 0; k < in; ++k)
      q.group_of->as<int32_t>()[k] = static_cast<int32_t>(rng.below(static_cast<uint64_t>(groups)));
  }
  return q;
}

inline std::string difference(const QuantizedLinear& a, const QuantizedLinear& b) {
  if (!(a.spec == b.spec)) return "specs differ";
  if (a.input_scale != b.input_scale) return "input scales differ";
  if (a.global_scale != b.global_scale) return "global scales differ";
  if (a.zeros.has_value() != b.zeros.has_value()) return "one has zeros, the other has none";
  if (a.group_of.has_value() != b.group_of.has_value()) return "one has group_of, the other has none";
  if (const std::string d = first_difference(a.codes, b.codes); !d.empty()) return "codes: " + d;
  if (const std::string d = first_difference(a.scales, b.scales); !d.empty()) return "scales: " + d;
  if (a.zeros)
    if (const std::string d = first_difference(*a.zeros, *b.zeros); !d.empty()) return "zeros: " + d;
  if (a.group_of)
    if (const std::string d = first_difference(*a.group_of, *b.group_of); !d.empty()) return "group_of: " + d;
  return "";
}

// The packed tensors as a checkpoint would give them, each at an odd address: files do not promise alignment.
class Stored {
 public:
  explicit Stored(const PackedLinear& p) {
    for (const NamedTensor& t : p.tensors) {
      auto& bytes = bytes_[t.name];
      bytes.resize(static_cast<size_t>(t.tensor.bytes()) + 1);
      const auto* from = static_cast<const uint8_t*>(t.tensor.view().data);
      std::copy(from, from + t.tensor.bytes(), bytes.begin() + 1);
      views_[t.name] = {bytes.data() + 1, t.tensor.dtype(), t.tensor.shape(), {}};
    }
  }
  TensorSource source() const {
    return [this](const std::string& name) {
      const auto it = views_.find(name);
      return it == views_.end() ? ConstTensorView{} : it->second;
    };
  }
  std::map<std::string, ConstTensorView>& views() { return views_; }

 private:
  std::map<std::string, std::vector<uint8_t>> bytes_;
  std::map<std::string, ConstTensorView> views_;
};

// Integer grids of weight-only linears, int8 and FP8 with every kind of activations and shared scales.
inline std::vector<QuantSpec> all_specs(int64_t out) {
  std::vector<QuantSpec> specs;
  for (int bits : {2, 3, 4, 5, 6, 7, 8})
    for (int64_t group : {32, 64, 128, -1})
      for (bool symmetric : {true, false}) specs.push_back({.bits = bits, .group = group, .symmetric = symmetric});
  specs.push_back({.bits = 3, .group = 32, .symmetric = false, .scale_dtype = DType::bf16});
  std::set<std::pair<int64_t, int64_t>> shared = {{1, -1}, {out, -1}, {1, 32}, {128, 128}, {2, -1}};
  for (Grid grid : {Grid::integer, Grid::f8_e4m3})
    for (ActQuant activations : {ActQuant::none, ActQuant::token, ActQuant::tensor})
      for (DType scale_dtype : {DType::f16, DType::bf16, DType::f32})
        for (const auto& [out_group, group] : shared) {
          const QuantSpec s{.grid = grid,
                            .bits = 8,
                            .group = group,
                            .scale_dtype = scale_dtype,
                            .out_group = out_group,
                            .activations = activations};
          if (std::find(specs.begin(), specs.end(), s) == specs.end()) specs.push_back(s);
        }
  specs.push_back({.grid = Grid::f8_e4m3,
                   .bits = 8,
                   .group = 32,
                   .scale_dtype = DType::f8_e8m0,
                   .out_group = 32,
                   .activations = ActQuant::token});
  for (QuantSpec s : {kNvfp4, kMxfp4})
    for (ActQuant activations : {ActQuant::none, ActQuant::token, ActQuant::tensor}) {
      s.activations = activations;
      specs.push_back(s);
    }
  return specs;
}

// --- goldens: what other people's packers made of given inputs

inline constexpr const char* kGoldens = "goldens/packing_reference.safetensors";

// "gptq.w4.g-1.sym.codes" -> "gptq.w4.g-1.sym.", for the names that begin with `family`.
inline std::vector<std::string> golden_prefixes(const Golden& golden, const std::string& family) {
  std::vector<std::string> out;
  for (const std::string& name : golden.names())
    if (name.rfind(family, 0) == 0 && name.size() > 6 && name.substr(name.size() - 6) == ".codes")
      out.push_back(name.substr(0, name.size() - 5));
  return out;
}

inline QuantSpec golden_spec(const std::string& prefix) {
  const size_t w = prefix.find(".w"), g = prefix.find(".g");
  return {.bits = std::stoi(prefix.substr(w + 2)),
          .group = std::stoi(prefix.substr(g + 2)),
          .symmetric = prefix.find(".asym") == std::string::npos};
}

inline TensorSource golden_source(const Golden& golden, std::map<std::string, Tensor>& kept) {
  return [&](const std::string& name) -> ConstTensorView {
    if (!golden.has(name)) return {};
    return kept.insert_or_assign(name, golden.get(name)).first->second;
  };
}

}  // namespace fewbit::test
