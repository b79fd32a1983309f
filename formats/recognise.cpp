#include "formats/recognise.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

namespace fewbit {
namespace {

using Module = std::map<std::string, const TensorInfo*>;  // by suffix

struct Mark {
  const char* suffix;
  std::optional<DType> dtype{};  // where the name alone does not tell
};
struct Signature {
  const char* packing;
  std::initializer_list<Mark> marks;  // all of them must be there
};

// In order: the first that fits. GPTQ's two versions and FP8's two configs look the same without a config.
const std::array<Signature, 16>& signatures() {
  static const std::array<Signature, 16> all = {{
      {"marlin", {{"B"}, {"s"}}},
      {"marlin_24", {{"B_24"}, {"B_meta"}, {"s"}}},
      {"gptq or gptq_v2", {{"qweight"}, {"qzeros"}, {"scales"}, {"g_idx"}}},
      {"awq", {{"qweight"}, {"qzeros"}, {"scales"}}},
      {"ct_pack", {{"weight_packed"}, {"weight_shape"}}},
      {"ct_marlin_24", {{"weight_packed"}, {"scale_packed"}, {"meta"}}},
      {"ct_nvfp4", {{"weight_packed"}, {"weight_scale"}, {"weight_global_scale"}}},
      {"ct_mxfp4", {{"weight_packed", DType::u8}, {"weight_scale"}}},
      {"modelopt_nvfp4", {{"weight", DType::u8}, {"weight_scale"}, {"weight_scale_2"}}},
      {"fp8_block or fp8_scalar", {{"weight", DType::f8_e4m3}, {"weight_scale_inv"}}},
      {"fp8_block_v4", {{"weight", DType::f8_e4m3}, {"scale"}}},
      {"mxfp4_v4", {{"weight", DType::i8}, {"scale"}}},
      {"mxfp4", {{"down_proj_blocks", DType::u8}, {"down_proj_scales", DType::u8}}},
      {"ct_float or fp8", {{"weight", DType::f8_e4m3}, {"weight_scale"}}},
      {"ct_int", {{"weight", DType::i8}, {"weight_scale"}}},
      {"dense", {{"weight"}}},
  }};
  return all;
}

bool fits(const Signature& s, const Module& module) {
  return std::all_of(s.marks.begin(), s.marks.end(), [&](const Mark& m) {
    const auto it = module.find(m.suffix);
    return it != module.end() && (!m.dtype || it->second->dtype == *m.dtype);
  });
}

bool is_float(DType d) { return d == DType::f32 || d == DType::f16 || d == DType::bf16; }

}  // namespace

Recognised recognise(const CheckpointIndex& index) {
  std::map<std::string, Module> modules;
  for (const auto& [name, info] : index.tensors) {
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos) modules[name.substr(0, dot)][name.substr(dot + 1)] = &info;
  }
  Recognised r;
  for (const auto& [name, module] : modules) {
    const auto it =
        std::find_if(signatures().begin(), signatures().end(), [&](const Signature& s) { return fits(s, module); });
    const bool dense = it != signatures().end() && it + 1 == signatures().end();
    if (it == signatures().end() || (dense && !is_float(module.at("weight")->dtype))) {
      const bool quantized =
          std::any_of(module.begin(), module.end(), [](const auto& t) { return !is_float(t.second->dtype); });
      r.unknown += quantized;
    } else if (dense) {
      r.dense += module.at("weight")->shape.rank() == 2;
    } else {
      ++r.packed[it->packing];
    }
  }
  return r;
}

}  // namespace fewbit
