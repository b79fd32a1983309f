// Checkpoints of HQQ.
#include <fmt/format.h>

#include <array>

#include "formats/bits.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/model/float_type.h"
#include "src/model/foreign/foreign.h"

namespace fewbit {
namespace {

// What a layer saves beside its codes, in the order of hqq.
constexpr std::array kBeside = {"nbits",
                                "group_size",
                                "shape",
                                "scale",
                                "zero",
                                "axis",
                                "packing",
                                "unpack_view_dtype",
                                "view_as_float",
                                "quant_scale",
                                "quant_zero",
                                "compute_dtype",
                                "offload_meta",
                                "encoded_state_dict",
                                "stores_quant_config",
                                "channel_wise",
                                "optimize",
                                "round_zero"};

struct Packing {
  std::string_view name;
  int fields, first_shift, step;  // of a byte or an int32; bits of the first field, and down to the next
  int bytes;                      // of a word
  uint32_t mask;
};
constexpr Packing kPackings[] = {{"8bit_u8", 1, 0, 0, 1, 255},
                                 {"4bit_u8", 2, 4, 4, 1, 15},
                                 {"3bit_32", 10, 27, 3, 4, 7},
                                 {"2bit_u8", 4, 6, 2, 1, 3},
                                 {"1bit_u8", 8, 7, 1, 1, 1}};

struct Coded {
  Stored codes{}, scale{}, zero{};
  const Packing* packing = nullptr;
  int64_t out = 0, in = 0, rows = 0, columns = 0, words = 0;  // of the matrix; rows of words
  bool by_row = true;                                         // a scale for each row, else for each column
  DType type = DType::bf16;
};

Tensor decoded(const Coded& c) {
  const Tensor codes = c.codes.bytes(), scale = c.scale.floats(), zero = c.zero.floats();
  const Tensor values = Tensor::host(DType::f32, {c.out, c.in});
  parallel_for(c.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t word = r % c.words * c.columns;
      const int shift = c.packing->first_shift - static_cast<int>(r / c.words) * c.packing->step;
      for (int64_t i = 0; i < c.columns; ++i) {
        const uint32_t fields = c.packing->bytes == 4 ? bits::load<uint32_t>(codes.view().data, word + i)
                                                      : bits::load<uint8_t>(codes.view().data, word + i);
        const auto code = static_cast<float>(fields >> shift & c.packing->mask);
        const int64_t g = c.by_row ? r : i;
        const float moved = in_type(code - in_type(zero.as<float>()[g], c.type), c.type);
        values.as<float>()[r * c.columns + i] = in_type(moved * in_type(scale.as<float>()[g], c.type), c.type);
      }
    }
  });
  return in_float_type(values, c.type);
}

class Reader {
 public:
  explicit Reader(Decoding& d) : d_(d) {}

  void take(const NamedLinear& l) {
    const std::string codes = l.name + ".W_q";
    const TensorInfo* w = d_.find(codes);
    if (!w) return;
    for (const char* again : {".quant_scale", ".quant_zero"})
      if (number(l.name + again, 0) != 0)
        fail(ErrorKind::unsupported, d_.where(l.name + again) +
                                         ": scales or zeros that were quantized again are not "
                                         "read; hqq reads them");
    Coded c{.out = l.out, .in = l.in};
    const std::string packing = text(l.name + ".packing"), type = text(l.name + ".compute_dtype");
    for (const Packing& p : kPackings)
      if (p.name == packing) c.packing = &p;
    if (!c.packing)
      return d_.complain(l.name + ".packing", "expected one of hqq's packings, found \"" + packing + "\"");
    c.type = type == "torch.float16" ? DType::f16 : type == "torch.float32" ? DType::f32 : DType::bf16;
    c.by_row = number(l.name + ".axis", 1) == 1;
    const int64_t n = l.out * l.in, group = number(l.name + ".group_size", c.by_row ? l.in : l.out);
    if (group < 1 || n % group != 0)
      return d_.complain(l.name + ".group_size", fmt::format("expected a divisor of {}, found {}", n, group));
    c.rows = c.by_row ? n / group : group, c.columns = n / c.rows;
    c.words = (c.rows + c.packing->fields - 1) / c.packing->fields;
    if (w->bytes != c.words * c.columns * c.packing->bytes)
      return d_.complain(codes,
                         fmt::format("expected {} bytes ({} of [{}, {}] in groups of {}), found {}",
                                     c.words * c.columns * c.packing->bytes, packing, l.out, l.in, group, w->bytes));
    const auto floats = {DType::f16, DType::bf16, DType::f32};
    const auto scale = d_.stored(l.name + ".scale", floats, n / group),
               zero = d_.stored(l.name + ".zero", floats, n / group);
    const auto whole = d_.stored(codes, {w->dtype}, w->shape.numel());
    if (!scale || !zero) return;
    c.codes = *whole, c.scale = *scale, c.zero = *zero;
    std::vector<std::string> beside;
    for (const char* name : kBeside) beside.push_back(l.name + '.' + name);
    d_.put(l.name + ".weight", codes, "hqq", c.type, {l.out, l.in}, beside, [c] { return decoded(c); });
  }

 private:
  // A whole number that hqq saves as a tensor of one element; `other` where there is none.
  int64_t number(const std::string& tensor, int64_t other) {
    const TensorInfo* t = d_.find(tensor);
    if (!t || t->shape.numel() != 1) return other;
    const ConstTensorView v = d_.index().view(*t);
    return t->dtype == DType::i32  ? bits::load<int32_t>(v.data, 0)
           : t->dtype == DType::u8 ? bits::load<uint8_t>(v.data, 0)
                                   : other;
  }
  // A word, a byte a letter.
  std::string text(const std::string& tensor) {
    const TensorInfo* t = d_.find(tensor);
    if (!t || t->dtype != DType::u8 || t->bytes > 64) return "";
    const ConstTensorView v = d_.index().view(*t);
    return {static_cast<const char*>(v.data), static_cast<size_t>(t->bytes)};
  }

  Decoding& d_;
};

}  // namespace

void take_hqq(const NamedLinear& l, Decoding& decoding) { Reader(decoding).take(l); }

}  // namespace fewbit
