// AWQ, version "gemm": 4-bit codes packed along the outputs. W is [N outputs, K inputs].
//
//   qweight  I32 [K, N/8]   nibble i of word c holds output 8c + ORDER[i], ORDER = 0 2 4 6 1 3 5 7
//   qzeros   I32 [G, N/8]   zero points as they are, in the same order
//   scales   F16 [G, N]
//
// Readers want zero points in any case: a symmetric grid is stored with the zero 8 everywhere.
// docs/formats/awq.md has the bytes.
#include <algorithm>

#include "formats/bits.h"
#include "formats/packings/integer_grid.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

constexpr int kFields = 8;            // nibbles of a word
constexpr int64_t kWordsAtOnce = 16;  // one cache line of a row of words

constexpr int output_of(int field) { return ((field & 3) << 1) | (field >> 2); }

int64_t same_column(int64_t n) { return n; }

// values [N, C] u8, below 16 -> words [C, N/8]
Tensor pack_columns(const Tensor& values) {
  const int64_t out = values.shape()[0], columns = values.shape()[1], words = out / kFields;
  Tensor packed = Tensor::host(DType::i32, {columns, words});
  const uint8_t* from = values.as<uint8_t>();
  uint32_t* to = packed.as<uint32_t>();
  parallel_for(words, kWordsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t w = begin; w < end; ++w) {
        uint32_t word = 0;
        for (int f = 0; f < kFields; ++f)
          word |= static_cast<uint32_t>(from[(w * kFields + output_of(f)) * columns + c]) << (4 * f);
        to[c * words + w] = word;
      }
  });
  return packed;
}

// words [C, N/8] -> values [N, C]
Tensor unpack_columns(ConstTensorView packed) {
  const int64_t columns = packed.shape[0], words = packed.shape[1];
  Tensor values = Tensor::host(DType::u8, {words * kFields, columns});
  uint8_t* to = values.as<uint8_t>();
  parallel_for(words, kWordsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t w = begin; w < end; ++w) {
        const uint32_t word = bits::load<uint32_t>(packed.data, c * words + w);
        for (int f = 0; f < kFields; ++f)
          to[(w * kFields + output_of(f)) * columns + c] = static_cast<uint8_t>((word >> (4 * f)) & 15);
      }
  });
  return values;
}

Tensor zeros_of(const QuantizedLinear& q) {
  if (q.zeros) return clone_host(*q.zeros);
  Tensor zeros = Tensor::host(DType::u8, {q.out(), q.groups()});
  std::fill_n(zeros.as<uint8_t>(), zeros.numel(), static_cast<uint8_t>(q.spec.mid_code()));
  return zeros;
}

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (std::string why = integer_grid::refuses(spec, out, in); !why.empty()) return why;
  if (spec.bits != 4) return "AWQ holds 4 bits, not " + std::to_string(spec.bits);
  if (act_order) return "AWQ has no room for reordered groups (act-order)";
  if (out % kFields != 0) return "AWQ wants N % 8 = 0, here N = " + std::to_string(out);
  if (in % spec.group_size(in) != 0) {
    return "AWQ wants K % group = 0, here K = " + std::to_string(in) + ", group " + std::to_string(spec.group);
  }
  return "";
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  const int64_t groups = spec.groups(in), words = out / kFields;
  return {{"qweight", DType::i32, {in, words}},
          {"qzeros", DType::i32, {groups, words}},
          {"scales", DType::f16, {groups, out}}};
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  FEWBIT_ASSERT(!q.input_scale && !q.global_scale);
  validate(q);
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  p.tensors.push_back({prefix + "qweight", pack_columns(q.codes)});
  p.tensors.push_back({prefix + "qzeros", pack_columns(zeros_of(q))});
  p.tensors.push_back({prefix + "scales", integer_grid::scales_to_file(q.scales, same_column)});
  return p;
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  const std::string prefix = std::string(linear) + '.';
  if (const std::string why = refuses(spec, out, in, false); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read as AWQ: " + why);
  const std::vector<TensorPlan> plan = tensors(spec, out, in, false);
  QuantizedLinear q;
  q.spec = spec;
  q.codes = unpack_columns(expect_tensor(source, linear, plan[0]));
  q.zeros =
      integer_grid::zeros_from_file(unpack_columns(expect_tensor(source, linear, plan[1])), spec, prefix + "qzeros");
  q.scales = integer_grid::scales_from_file(expect_tensor(source, linear, plan[2]), prefix + "scales", same_column);
  return q;
}

}  // namespace

constinit const Packing packing_awq = {
    .name = "awq",
    .summary = "AWQ GEMM words: 4 bits with zero points",
    .refuses = refuses,
    .tensors = tensors,
    .pack = pack,
    .unpack = unpack,
};

}  // namespace fewbit
