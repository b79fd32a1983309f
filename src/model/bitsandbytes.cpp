#include "src/model/bitsandbytes.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/float_type.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kFourBitValues = 16, kByteValues = 256;

// A tensor of a file that is opened anew, so that nothing stays mapped between two weights.
struct Stored {
  fs::path file;
  TensorInfo info;

  Tensor bytes() const {
    const MappedFile mapped = MappedFile::windowed(file);
    return clone_host({mapped.at(info.begin, info.bytes), info.dtype, info.shape, {}});
  }
};

// The state of 4-bit codes.
struct FourBit {
  Stored codes, absmax, map;
  Stored nested_absmax, nested_map;  // where `nested`
  bool nested = false;
  int64_t block = 64, nested_block = kByteValues;
  float nested_offset = 0;
  Shape shape{};
  DType type = DType::f32;
};

std::vector<float> scales_of(const FourBit& f) {
  const Tensor stored = f.absmax.bytes();
  std::vector<float> scales(static_cast<size_t>(stored.numel()));
  if (!f.nested) {
    std::copy_n(stored.as<float>(), scales.size(), scales.begin());
    return scales;
  }
  const Tensor map = f.nested_map.bytes(), absmax = f.nested_absmax.bytes();
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] =
        map.as<float>()[stored.as<uint8_t>()[i]] * absmax.as<float>()[static_cast<int64_t>(i) / f.nested_block] +
        f.nested_offset;
  return scales;
}

Tensor decoded(const FourBit& f) {
  const Tensor codes = f.codes.bytes(), map = f.map.bytes();
  const std::vector<float> scales = scales_of(f);
  Tensor values = Tensor::host(DType::f32, f.shape);
  parallel_for(values.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t byte = codes.as<uint8_t>()[i / 2];
      values.as<float>()[i] =
          map.as<float>()[i % 2 == 0 ? byte >> 4 : byte & 15] * scales[static_cast<size_t>(i / f.block)];
    }
  });
  return in_float_type(values, f.type);
}

Tensor decoded_bytes(const Stored& codes, const Stored& scb) {
  const Tensor q = codes.bytes(), scales = scb.bytes();
  Tensor values = Tensor::host(DType::f32, codes.info.shape);
  const int64_t in = values.cols();
  parallel_for(values.rows(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < in; ++i)
        values.as<float>()[o * in + i] =
            static_cast<float>(q.as<int8_t>()[o * in + i]) * (scales.as<float>()[o] / 127.f);
  });
  return values;
}

// Puts makers in the place of codes, and takes the tensors beside them out of the index.
class Decoding {
 public:
  Decoding(CheckpointIndex& index, WeightStore::Makers& makers) : index_(index), makers_(makers) {}

  void take(const NamedLinear& l) {
    const std::string weight = l.name + ".weight", state = weight + ".quant_state.bitsandbytes__";
    if (index_.tensors.count(l.name + ".SCB")) return take_bytes(l, weight);
    const auto at = index_.tensors.lower_bound(state);
    if (at != index_.tensors.end() && starts_with(at->first, state)) take_four_bits(l, weight, at->first);
  }
  void fail_if_any() const {
    if (!complaints_.empty()) fail(ErrorKind::checkpoint, join(complaints_, "\n"));
  }

 private:
  std::string where(const std::string& tensor) const {
    const auto t = index_.tensors.find(tensor);
    return t == index_.tensors.end() ? tensor : fmt::format("{}: tensor '{}'", path_of(t->second).string(), tensor);
  }
  const fs::path& path_of(const TensorInfo& t) const { return index_.files[static_cast<size_t>(t.file)].path(); }
  void complain(const std::string& tensor, const std::string& what) {
    complaints_.push_back(fmt::format("{}: {}", where(tensor), what));
  }

  // The tensor, which must be of that type and number of elements; nothing, with a complaint, where it is not.
  std::optional<Stored> stored(const std::string& name, DType type, int64_t elements) {
    const auto t = index_.tensors.find(name);
    if (t != index_.tensors.end() && t->second.dtype == type && t->second.shape.numel() == elements)
      return Stored{path_of(t->second), t->second};
    complain(name, fmt::format("expected {} of {} elements, found {}", name_of(type), elements,
                               t == index_.tensors.end()
                                   ? "nothing"
                                   : fmt::format("{} {}", name_of(t->second.dtype), t->second.shape.str())));
    return std::nullopt;
  }

  void put(const std::string& weight, std::string_view kind, DType type, const Shape& shape,
           const std::vector<std::string>& beside, std::function<Tensor()> make) {
    TensorInfo& info = index_.tensors.at(weight);
    info.dtype = type;
    info.shape = shape;
    info.stored = kind;
    makers_[weight] = std::move(make);
    for (const std::string& name : beside) index_.tensors.erase(name);
  }

  void take_bytes(const NamedLinear& l, const std::string& weight) {
    const auto codes = stored(weight, DType::i8, l.out * l.in), scb = stored(l.name + ".SCB", DType::f32, l.out);
    if (!codes || !scb) return;
    Stored rows = *codes;
    rows.info.shape = {l.out, l.in};
    put(weight, "llm_int8", DType::f32, {l.out, l.in}, {l.name + ".SCB", l.name + ".weight_format"},
        [rows, scb = *scb] { return decoded_bytes(rows, scb); });
  }

  void take_four_bits(const NamedLinear& l, const std::string& weight, const std::string& state) {
    const TensorInfo& info = index_.tensors.at(state);
    const ConstTensorView v = index_.view(info);
    const auto* text = static_cast<const char*>(v.data);
    const Json j =
        info.dtype == DType::u8 ? json_or_discarded({text, static_cast<size_t>(info.bytes)}, kRecordJson) : Json();
    FourBit f;
    std::string type, dtype;
    try {
      type = j.at("quant_type");
      dtype = j.at("dtype");
      j.at("blocksize").get_to(f.block);
      const auto shape = j.at("shape").get<std::vector<int64_t>>();
      if (shape != std::vector{l.out, l.in})
        return complain(state, fmt::format("expected shape [{}, {}], found {}", l.out, l.in, j.at("shape").dump()));
      f.nested = j.contains("nested_offset");
      if (f.nested) {
        j.at("nested_offset").get_to(f.nested_offset);
        j.at("nested_blocksize").get_to(f.nested_block);
      }
    } catch (const Json::exception&) {
      return complain(state, "expected JSON with quant_type, blocksize, dtype and shape, found something else");
    }
    if (type != "nf4" && type != "fp4")
      fail(ErrorKind::unsupported, fmt::format("{}: quant_type: expected nf4 or fp4, found {}", where(state), type));
    if (f.block < 1 || f.nested_block < 1) return complain(state, "a block of no elements");
    f.type = dtype == "bfloat16" ? DType::bf16 : dtype == "float16" ? DType::f16 : DType::f32;
    f.shape = {l.out, l.in};
    if (!find_parts(l, weight, f)) return;
    std::vector<std::string> beside{state};
    for (const char* part : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"})
      beside.push_back(weight + part);
    put(weight, type == "nf4" ? "nf4" : "fp4", f.type, f.shape, beside, [f] { return decoded(f); });
  }

  bool find_parts(const NamedLinear& l, const std::string& weight, FourBit& f) {
    const int64_t n = l.out * l.in, blocks = (n + f.block - 1) / f.block;
    const auto codes = stored(weight, DType::u8, (n + 1) / 2);
    const auto absmax = stored(weight + ".absmax", f.nested ? DType::u8 : DType::f32, blocks);
    const auto map = stored(weight + ".quant_map", DType::f32, kFourBitValues);
    if (!codes || !absmax || !map) return false;
    f.codes = *codes;
    f.absmax = *absmax;
    f.map = *map;
    if (!f.nested) return true;
    const auto outer = stored(weight + ".nested_absmax", DType::f32, (blocks + f.nested_block - 1) / f.nested_block);
    const auto nested = stored(weight + ".nested_quant_map", DType::f32, kByteValues);
    if (!outer || !nested) return false;
    f.nested_absmax = *outer;
    f.nested_map = *nested;
    return true;
  }

  CheckpointIndex& index_;
  WeightStore::Makers& makers_;
  std::vector<std::string> complaints_;
};

}  // namespace

bool of_bitsandbytes(const std::string& config_json) {
  const Json j = json_or_discarded(config_json, kConfigJson);
  const Json none;
  const Json& q = j.is_object() && j.contains("quantization_config") ? j["quantization_config"] : none;
  return q.is_object() && q.contains("quant_method") && q["quant_method"] == "bitsandbytes";
}

WeightStore without_bitsandbytes(std::span<const NamedLinear> linears, WeightStore store) {
  return std::move(store).reindexed([&](const fs::path&, CheckpointIndex& index, WeightStore::Makers& makers) {
    Decoding decoding(index, makers);
    for (const NamedLinear& l : linears) decoding.take(l);
    decoding.fail_if_any();
  });
}

}  // namespace fewbit
