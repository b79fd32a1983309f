// Opens a model directory and checks everything that can be known without reading a weight: config,
// architecture, tensor names, types and shapes, and how every linear is packed.
#include "src/model/checkpoint.h"

#include <set>

#include "formats/bits.h"
#include "formats/gguf/locate.h"
#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/half.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/archs.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/foreign/foreign.h"
#include "src/model/gguf/checkpoint.h"
#include "src/model/hub_cache.h"
#include "src/model/mtp.h"
#include "src/model/stacked_experts.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// The first quantization config beside config.json.
ConfigFile side_config(const fs::path& dir) {
  for (const std::string_view name : kSideFiles) {
    std::error_code ignored;
    if (fs::exists(dir / name, ignored)) return {std::string(name), json_text(dir / name, kConfigJson)};
  }
  return {};
}

// Complaints about the packed tensors of one linear.
void check_packed(const NamedLinear& linear, const LinearFormat& format, const WeightStore& store,
                  std::vector<std::string>& complaints) {
  const auto source = [&](const std::string& name) { return store.has(name) ? store.get(name) : ConstTensorView{}; };
  for (const TensorPlan& plan : format.packing->tensors(format.spec, linear.out, linear.in, format.act_order)) {
    const std::string name = linear.name + '.' + plan.suffix;
    const ConstTensorView v = source(name);
    if (v.data && plan.takes(v)) continue;
    const std::string found = v.data ? std::string(name_of(v.dtype)) + ' ' + v.shape.str() : "nothing";
    complaints.push_back(store.path().string() + ": tensor '" + name + "': expected " +
                         std::string(name_of(plan.dtype)) + ' ' + plan.shape.str() + " (" +
                         std::string(format.packing->name) + ' ' + format.spec.str() + "), found " + found);
  }
}

bool is_plain(const TensorInfo* w) {
  return w && (w->dtype == DType::f32 || w->dtype == DType::f16 || w->dtype == DType::bf16);
}

// The ends of the model, and the matrices of its op list that no recipe touches, which are not stored as plain floats.
std::vector<NamedLinear> packed_beside_linears(const ModelSpec& spec, const WeightStore& store) {
  std::vector<NamedLinear> out;
  for (NamedLinear& l : ends_of(spec))
    if (!is_plain(store.find(l.name + ".weight"))) out.push_back(std::move(l));
  for (NamedLinear& l : projects_of(spec))
    if (const TensorInfo* w = store.find(l.name + ".weight"); w && !is_plain(w)) out.push_back(std::move(l));
  return out;
}

// Those of the layer behind the last whose tensors do not say their shape, as matrices of low_bit_others() do.
std::vector<NamedLinear> packed_mtp_linears(const ModelSpec& spec, const WeightStore& store) {
  std::vector<NamedLinear> out;
  for (const std::vector<NamedLinear>& group : mtp_linears(spec, store))
    for (NamedLinear l : group)
      if (has_linear(store, l.name) && !store.has(l.name + ".weight")) {
        l.layer = kOutsideModel;
        out.push_back(std::move(l));
      }
  return out;
}

// Matrices of one byte or of packed nibbles that no linear of `known` is: what may be packed of towers and MTP layers.
// Whether they are, and how, the quantization config says.
std::vector<NamedLinear> low_bit_others(const WeightStore& store, const std::vector<NamedLinear>& known) {
  std::set<std::string> names;
  for (const NamedLinear& l : known) names.insert(l.name);
  std::vector<NamedLinear> out;
  for (const auto& [tensor, info] : store.index().tensors) {
    const size_t dot = tensor.rfind('.');
    if (dot == std::string::npos || info.shape.rank() != 2) continue;
    const std::string name = tensor.substr(0, dot), suffix = tensor.substr(dot + 1);
    if ((suffix != "weight" && suffix != "weight_packed") || names.count(name)) continue;
    int64_t codes_in_element = 0;
    if (info.dtype == DType::f8_e4m3 || (info.dtype == DType::i8 && !store.has(name + ".scale"))) codes_in_element = 1;
    if (info.dtype == DType::u8 || (info.dtype == DType::i8 && store.has(name + ".scale"))) codes_in_element = 2;
    NamedLinear l{name, kOutsideModel, info.shape[0], info.shape[1] * codes_in_element, false};
    if (const TensorInfo* shape = store.find(name + ".weight_shape"); shape && shape->shape.numel() == 2) {
      const ConstTensorView v = store.get(shape->name);  // of compressed-tensors, outputs and inputs
      if (v.dtype == DType::i64) l.in = bits::load<int64_t>(v.data, 1);
      if (v.dtype == DType::i32) l.in = bits::load<int32_t>(v.data, 1);
    }
    if (l.in > 0) out.push_back(std::move(l));
  }
  return out;
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& given) {
  const fs::path dir = hub_folder(given);
  if (const auto file = gguf::locate(dir)) return open_gguf(*file);
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored))
    fail(ErrorKind::io, dir.string() +
                            ": expected a model folder with config.json and weights, or a .gguf file, found " +
                            (fs::exists(dir, ignored) ? "a file" : "nothing"));
  ConfigView config = ConfigView::open(dir);
  ModelSpec spec = build_spec(config);
  WeightStore store = with_single_experts(spec, WeightStore::open(dir));
  std::vector<NamedLinear> linears = linears_of(spec);
  const std::string method = foreign_method(config.text());
  if (!method.empty()) {
    std::vector<NamedLinear> coded = linears;
    for (NamedLinear& l : ends_of(spec)) coded.push_back(std::move(l));
    store = without_codes(method, coded, std::move(store));
  }
  for (NamedLinear& l : packed_beside_linears(spec, store)) linears.push_back(std::move(l));
  for (NamedLinear& l : packed_mtp_linears(spec, store)) linears.push_back(std::move(l));
  for (NamedLinear& l : low_bit_others(store, linears)) linears.push_back(std::move(l));
  std::vector<std::string> names, packed, complaints;
  for (const NamedLinear& l : linears) names.push_back(l.name);
  std::string format = method;
  QuantizationSummary quantization;
  if (method.empty())
    quantization = read_quantization(
        config.text(), side_config(dir), names,
        [&](const std::string& name) { return store.has(name) ? store.get(name) : ConstTensorView{}; }, &format);
  std::vector<NamedLinear> others;
  for (const NamedLinear& l : linears) {
    const auto it = quantization.linears.find(l.name);
    if (it == quantization.linears.end()) continue;
    packed.push_back(l.name);
    check_packed(l, it->second, store, complaints);
    if (l.layer == kOutsideModel) others.push_back(l);
  }
  for (std::string& line : check_against(spec, store, packed)) complaints.push_back(std::move(line));
  if (!complaints.empty()) fail(ErrorKind::checkpoint, join(complaints, "\n"));
  return {dir,
          std::move(config),
          std::move(spec),
          std::move(store),
          std::move(quantization),
          std::move(format),
          std::move(others)};
}

std::vector<NamedLinear> Checkpoint::linears() const {
  std::vector<NamedLinear> out = linears_of(spec);
  for (NamedLinear& l : ends_of(spec))
    if (packed(l.name)) out.push_back(std::move(l));
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

QuantizedLinear Checkpoint::sound_codes(const NamedLinear& l) const {
  QuantizedLinear q = unpack(l.name, l.out, l.in);
  if (const std::string what = check(q); !what.empty())
    fail(ErrorKind::checkpoint, store.path().string() + ": linear '" + l.name + "' is damaged: " + what);
  return q;
}

QuantizedLinear Checkpoint::unpack(const std::string& linear, int64_t out, int64_t in) const {
  const auto it = quantization.linears.find(linear);
  FEWBIT_ASSERT(it != quantization.linears.end());
  return it->second.packing->unpack(linear, it->second.spec, out, in, source());
}

Tensor Checkpoint::values(const NamedLinear& l) const {
  return packed(l.name) ? dequantize_reference(sound_codes(l)) : float_values(store.get(l.name + ".weight"));
}

Tensor float_values(ConstTensorView v) {
  Tensor out = Tensor::host(DType::f32, v.shape);
  parallel_for(v.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float& to = out.as<float>()[i];
      if (v.dtype == DType::f32)
        to = bits::load<float>(v.data, i);
      else if (v.dtype == DType::f16)
        to = f16_to_f32(bits::load<uint16_t>(v.data, i));
      else
        to = bf16(bits::load<uint16_t>(v.data, i), 0);
    }
  });
  return out;
}

TensorSource Checkpoint::source() const {
  return [this](const std::string& name) { return store.has(name) ? store.get(name) : ConstTensorView{}; };
}

}  // namespace fewbit
