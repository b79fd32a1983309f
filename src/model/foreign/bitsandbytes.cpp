// Checkpoints of bitsandbytes (LLM.int8, NF4, FP4).
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/float_type.h"
#include "src/model/foreign/foreign.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kFourBitValues = 16, kByteValues = 256;

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

class Reader {
 public:
  explicit Reader(Decoding& decoding) : d_(decoding) {}

  void take(const NamedLinear& l) {
    const std::string weight = l.name + ".weight", state = weight + ".quant_state.bitsandbytes__";
    if (d_.find(l.name + ".SCB")) return take_bytes(l, weight);
    const auto at = d_.index().tensors.lower_bound(state);
    if (at != d_.index().tensors.end() && starts_with(at->first, state)) take_four_bits(l, weight, at->first);
  }

 private:
  void take_bytes(const NamedLinear& l, const std::string& weight) {
    const auto codes = d_.stored(weight, {DType::i8}, l.out * l.in),
               scb = d_.stored(l.name + ".SCB", {DType::f32}, l.out);
    if (!codes || !scb) return;
    Stored rows = *codes;
    rows.info.shape = {l.out, l.in};
    d_.put(weight, weight, "llm_int8", DType::f32, {l.out, l.in}, {l.name + ".SCB", l.name + ".weight_format"},
           [rows, scb = *scb] { return decoded_bytes(rows, scb); });
  }

  void take_four_bits(const NamedLinear& l, const std::string& weight, const std::string& state) {
    const TensorInfo& info = *d_.find(state);
    const ConstTensorView v = d_.index().view(info);
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
        return d_.complain(state, fmt::format("expected shape [{}, {}], found {}", l.out, l.in, j.at("shape").dump()));
      f.nested = j.contains("nested_offset");
      if (f.nested) {
        j.at("nested_offset").get_to(f.nested_offset);
        j.at("nested_blocksize").get_to(f.nested_block);
      }
    } catch (const Json::exception&) {
      return d_.complain(state, "expected JSON with quant_type, blocksize, dtype and shape, found something else");
    }
    if (type != "nf4" && type != "fp4")
      fail(ErrorKind::unsupported, fmt::format("{}: quant_type: expected nf4 or fp4, found {}", d_.where(state), type));
    if (f.block < 1 || f.nested_block < 1) return d_.complain(state, "a block of no elements");
    f.type = dtype == "bfloat16" ? DType::bf16 : dtype == "float16" ? DType::f16 : DType::f32;
    f.shape = {l.out, l.in};
    if (!find_parts(l, weight, f)) return;
    std::vector<std::string> beside{state};
    for (const char* part : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"})
      beside.push_back(weight + part);
    d_.put(weight, weight, type == "nf4" ? "nf4" : "fp4", f.type, f.shape, beside, [f] { return decoded(f); });
  }

  bool find_parts(const NamedLinear& l, const std::string& weight, FourBit& f) {
    const int64_t n = l.out * l.in, blocks = (n + f.block - 1) / f.block;
    const auto codes = d_.stored(weight, {DType::u8}, (n + 1) / 2);
    const auto absmax = d_.stored(weight + ".absmax", {f.nested ? DType::u8 : DType::f32}, blocks);
    const auto map = d_.stored(weight + ".quant_map", {DType::f32}, kFourBitValues);
    if (!codes || !absmax || !map) return false;
    f.codes = *codes;
    f.absmax = *absmax;
    f.map = *map;
    if (!f.nested) return true;
    const auto outer =
        d_.stored(weight + ".nested_absmax", {DType::f32}, (blocks + f.nested_block - 1) / f.nested_block);
    const auto nested = d_.stored(weight + ".nested_quant_map", {DType::f32}, kByteValues);
    if (!outer || !nested) return false;
    f.nested_absmax = *outer;
    f.nested_map = *nested;
    return true;
  }

  Decoding& d_;
};

}  // namespace

void take_bitsandbytes(const NamedLinear& l, Decoding& decoding) { Reader(decoding).take(l); }

}  // namespace fewbit
