// Checkpoints of torchao.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/bits.h"
#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/half.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/model/float_type.h"
#include "src/model/foreign/foreign.h"

namespace fewbit {
namespace {

using Json = nlohmann::json;

constexpr auto kFloats = {DType::f16, DType::bf16, DType::f32};

struct Coded {
  Stored codes{}, scale{};
  std::optional<Stored> zero{};
  int64_t out = 0, in = 0, block_out = 1, block_in = 1;
  DType type = DType::bf16;
};

Tensor zeros_of(const Stored& s) {
  const Tensor raw = s.bytes();
  if (raw.dtype() != DType::i8 && raw.dtype() != DType::i32 && raw.dtype() != DType::i64) return s.floats();
  Tensor z = Tensor::host(DType::f32, {raw.numel()});
  for (int64_t i = 0; i < z.numel(); ++i)
    z.as<float>()[i] = static_cast<float>(raw.dtype() == DType::i8    ? raw.as<int8_t>()[i]
                                          : raw.dtype() == DType::i32 ? raw.as<int32_t>()[i]
                                                                      : raw.as<int64_t>()[i]);
  return z;
}

// Codes of a byte each: int8, or E4M3.
Tensor decoded_bytes(const Coded& c) {
  const Tensor codes = c.codes.bytes(), scale = c.scale.floats();
  std::optional<Tensor> zero;
  if (c.zero) zero = zeros_of(*c.zero);
  const bool fp8 = codes.dtype() == DType::f8_e4m3;
  const Tensor values = Tensor::host(DType::f32, {c.out, c.in});
  const int64_t groups = c.in / c.block_in;
  parallel_for(c.out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < c.in; ++i) {
        const int64_t at = o * c.in + i, g = o / c.block_out * groups + i / c.block_in;
        const uint8_t byte = bits::load<uint8_t>(codes.view().data, at);
        float v = fp8 ? f8_e4m3_to_f32(byte) : static_cast<float>(static_cast<int8_t>(byte));
        if (zero) v = in_type(v - in_type(zero->as<float>()[g], c.type), c.type);
        values.as<float>()[at] = v * scale.as<float>()[g];
      }
  });
  return in_float_type(values, c.type);
}

// Two codes of -8 … 7 a byte; scales and zeros [group, output].
Tensor decoded_nibbles(const Coded& c) {
  const Tensor codes = c.codes.bytes(), scale = c.scale.floats(), zero = c.zero->floats();
  const Tensor values = Tensor::host(DType::f32, {c.out, c.in});
  parallel_for(c.out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < c.in; ++i) {
        const int64_t at = o * c.in + i, g = i / c.block_in * c.out + o;
        const int nibble = bits::load<uint8_t>(codes.view().data, at / 2) >> (i % 2 * 4) & 15;
        const auto code = static_cast<float>(nibble < 8 ? nibble : nibble - 16);
        values.as<float>()[at] = code * scale.as<float>()[g] + zero.as<float>()[g];
      }
  });
  return in_float_type(values, c.type);
}

class Reader {
 public:
  explicit Reader(Decoding& d) : d_(d) {}

  void take(const NamedLinear& l) {
    const std::string weight = l.name + ".weight", part = l.name + "._weight_";
    const auto entry = d_.index().metadata.find(weight);
    if (entry == d_.index().metadata.end()) return;
    const Json j = json_or_discarded(entry->second, kRecordJson);
    const std::string type = j.is_object() && j.contains("_type") && j["_type"].is_string() ? j["_type"] : Json("");
    if (type == "Tensor") return;
    const Json none = Json::object(),
               &data = j.is_object() && j.contains("_data") && j["_data"].is_object() ? j["_data"] : none;
    if (type != "Int8Tensor" && type != "IntxUnpackedToInt8Tensor" && type != "Float8Tensor" && type != "Int4Tensor")
      fail(ErrorKind::unsupported,
           fmt::format("{}: torchao's {} is not read; expected Int4Tensor, Int8Tensor, IntxUnpackedToInt8Tensor or "
                       "Float8Tensor. torchao reads it (through transformers; vLLM serves it)",
                       weight, type.empty() ? "metadata without a _type" : type));
    if (d_.find(part + "act_pre_scale"))
      fail(ErrorKind::unsupported,
           d_.where(part + "act_pre_scale") + ": scaled inputs are not read; torchao reads them");
    Coded c{.out = l.out, .in = l.in, .type = float_of(data)};
    if (!find_blocks(type, data, weight, part, c) || !find_parts(type, part, c)) return;
    d_.put(weight, part + "qdata",
           type == "Int4Tensor"     ? "torchao_int4"
           : type == "Float8Tensor" ? "torchao_float8"
                                    : "torchao_int8",
           c.type, {l.out, l.in},
           {part + "scale", part + "zero_point", part + "act_quant_scale", part + "act_quant_zero_point"},
           [c, nibbles = type == "Int4Tensor"] { return nibbles ? decoded_nibbles(c) : decoded_bytes(c); });
  }

 private:
  // The type that the weight had, which the values come back in.
  static DType float_of(const Json& data) {
    const Json d = data.contains("dtype") && data["dtype"].is_object() ? data["dtype"] : Json::object();
    const std::string name = d.contains("_data") && d["_data"].is_string() ? d["_data"].get<std::string>() : "bfloat16";
    return name == "float16" ? DType::f16 : name == "float32" ? DType::f32 : DType::bf16;
  }

  // Float8Tensor's scales say by their shape how many weights share one, the others by block_size.
  bool find_blocks(const std::string& type, const Json& data, const std::string& weight, const std::string& part,
                   Coded& c) {
    int64_t out = 0, in = 0;
    if (type == "Float8Tensor") {
      const TensorInfo* s = d_.find(part + "scale");
      const bool one = s && s->shape.numel() == 1, matrix = s && s->shape.rank() == 2;
      out = one ? c.out : matrix && s->shape[0] > 0 ? c.out / s->shape[0] : 0;
      in = one ? c.in : matrix && s->shape[1] > 0 ? c.in / s->shape[1] : 0;
    } else if (data.contains("block_size") && data["block_size"].is_array() && data["block_size"].size() == 2 &&
               data["block_size"][0].is_number_integer() && data["block_size"][1].is_number_integer()) {
      out = data["block_size"][0], in = data["block_size"][1];
    }
    if (out > 0 && in > 0 && c.out % out == 0 && c.in % in == 0) {
      c.block_out = out, c.block_in = in;
      return true;
    }
    d_.complain(weight, fmt::format("expected blocks that divide [{}, {}], found [{}, {}]", c.out, c.in, out, in));
    return false;
  }

  bool find_parts(const std::string& type, const std::string& part, Coded& c) {
    const bool nibbles = type == "Int4Tensor", fp8 = type == "Float8Tensor";
    const int64_t n = c.out * c.in, groups = n / (c.block_out * c.block_in);
    const auto codes = nibbles ? d_.stored(part + "qdata", {DType::i8, DType::u8}, n / 2)
                       : fp8   ? d_.stored(part + "qdata", {DType::f8_e4m3}, n)
                               : d_.stored(part + "qdata", {DType::i8}, n);
    const auto scale = d_.stored(part + "scale", kFloats, groups);
    const bool zeros = nibbles || type == "IntxUnpackedToInt8Tensor" || d_.find(part + "zero_point");
    if (zeros)
      c.zero = nibbles ? d_.stored(part + "zero_point", kFloats, groups)
                       : d_.stored(part + "zero_point",
                                   {DType::i8, DType::i32, DType::i64, DType::f16, DType::bf16, DType::f32}, groups);
    if (!codes || !scale || (zeros && !c.zero)) return false;
    c.codes = *codes, c.scale = *scale;
    if (nibbles) c.type = scale->info.dtype;
    return true;
  }

  Decoding& d_;
};

}  // namespace

void take_torchao(const NamedLinear& l, Decoding& decoding) { Reader(decoding).take(l); }

}  // namespace fewbit
