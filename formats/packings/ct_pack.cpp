// compressed-tensors "pack-quantized": integers of 2, 3, 4 or 8 bits, in plain order; inputs alone or rounded per
// token.
//
//   weight_packed      I32 [N, ceil(K/F)]   F = floor(32/bits) codes a word, code k in word k/F, field k%F
//   weight_scale       F16 | BF16 | F32 [N, G]
//   weight_shape       I64 [2] = {N, K}
//   weight_zero_point  I32 [ceil(N/F), G]   asymmetric grids; packed along N
//   weight_g_idx       I32 [K]              reordered groups (act-order): the group of every input
//
// Stored fields are the neutral codes: signed value + 2^(bits-1). At 3 bits the released library puts 10
// codes into a word; a newer one fills words to the last bit (32 codes in 3 words). The first is written,
// both are read, told by the shape. docs/formats/compressed-tensors.md has the bytes.
#include <algorithm>

#include "formats/bits.h"
#include "formats/packings/ct_tensors.h"
#include "formats/packings/integer_grid.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

int64_t released_words(int64_t count, int bits) { return (count + 32 / bits - 1) / (32 / bits); }
int64_t dense_words(int64_t count, int bits) { return (count * bits + 31) / 32; }

void pack_fields(const uint8_t* values, int64_t count, int bits, uint32_t* words) {
  const int per_word = 32 / bits;
  std::fill_n(words, released_words(count, bits), 0);
  for (int64_t i = 0; i < count; ++i)
    words[i / per_word] |= static_cast<uint32_t>(values[i]) << (bits * (i % per_word));
}

void unpack_fields(const uint32_t* words, int64_t count, int bits, uint8_t* values) {
  const int per_word = 32 / bits;
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<uint8_t>((words[i / per_word] >> (bits * (i % per_word))) & ((1u << bits) - 1));
}

// `words` holds count values of one line; `found` of them tell the layout.
void unpack_line(const std::vector<uint32_t>& words, int64_t count, int bits, uint8_t* values) {
  if (static_cast<int64_t>(words.size()) == released_words(count, bits))
    return unpack_fields(words.data(), count, bits, values);
  bits::unpack_run(words.data(), count, bits, values);
}

Tensor pack_codes(const Tensor& codes, int bits) {
  const int64_t out = codes.shape()[0], in = codes.shape()[1], per_row = released_words(in, bits);
  Tensor words = Tensor::host(DType::i32, {out, per_row});
  parallel_for(out, 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      pack_fields(codes.as<uint8_t>() + n * in, in, bits, words.as<uint32_t>() + n * per_row);
  });
  return words;
}

Tensor unpack_codes(ConstTensorView words, int64_t in, int bits) {
  const int64_t out = words.shape[0], per_row = words.shape[1];
  Tensor codes = Tensor::host(DType::u8, {out, in});
  parallel_for(out, 64, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> line(static_cast<size_t>(per_row));
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t w = 0; w < per_row; ++w)
        line[static_cast<size_t>(w)] = bits::load<uint32_t>(words.data, n * per_row + w);
      unpack_line(line, in, bits, codes.as<uint8_t>() + n * in);
    }
  });
  return codes;
}

Tensor pack_zeros(const Tensor& zeros, int bits) {
  const int64_t out = zeros.shape()[0], groups = zeros.shape()[1], rows = released_words(out, bits);
  Tensor words = Tensor::host(DType::i32, {rows, groups});
  std::vector<uint8_t> column(static_cast<size_t>(out));
  std::vector<uint32_t> line(static_cast<size_t>(rows));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < out; ++n) column[static_cast<size_t>(n)] = zeros.as<uint8_t>()[n * groups + g];
    pack_fields(column.data(), out, bits, line.data());
    for (int64_t r = 0; r < rows; ++r) words.as<uint32_t>()[r * groups + g] = line[static_cast<size_t>(r)];
  }
  return words;
}

Tensor unpack_zeros(ConstTensorView words, int64_t out, int bits) {
  const int64_t rows = words.shape[0], groups = words.shape[1];
  Tensor zeros = Tensor::host(DType::u8, {out, groups});
  std::vector<uint8_t> column(static_cast<size_t>(out));
  std::vector<uint32_t> line(static_cast<size_t>(rows));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < rows; ++r) line[static_cast<size_t>(r)] = bits::load<uint32_t>(words.data, r * groups + g);
    unpack_line(line, out, bits, column.data());
    for (int64_t n = 0; n < out; ++n) zeros.as<uint8_t>()[n * groups + g] = column[static_cast<size_t>(n)];
  }
  return zeros;
}

Tensor shape_tensor(int64_t out, int64_t in) {
  Tensor t = Tensor::host(DType::i64, {2});
  t.as<int64_t>()[0] = out;
  t.as<int64_t>()[1] = in;
  return t;
}

void expect_shape(ConstTensorView found, int64_t out, int64_t in, std::string_view linear) {
  const Shape stored{bits::load<int64_t>(found.data, 0), bits::load<int64_t>(found.data, 1)};
  if (!(stored == Shape{out, in}))
    fail(ErrorKind::checkpoint, "tensor '" + std::string(linear) + ".weight_shape': expected " + Shape{out, in}.str() +
                                    ", found " + stored.str());
}

// A -1 anywhere: the writer never filled it.
std::optional<Tensor> read_groups(ConstTensorView file, const QuantSpec& spec, const std::string& tensor) {
  for (int64_t k = 0; k < file.shape[0]; ++k)
    if (bits::load<int32_t>(file.data, k) == -1) return std::nullopt;
  return integer_grid::groups_from_file(file, spec, tensor);
}

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (std::string why = ct::refuses_scales(spec, out, in); !why.empty()) return why;
  QuantSpec with_f16 = spec;  // any type of scale is fine here
  with_f16.scale_dtype = DType::f16;
  if (spec.activations == ActQuant::token && spec.symmetric && (spec.bits != 8 || spec.act_bits != 8))
    with_f16.activations = ActQuant::none;  // the weights lie alike, however the input is rounded
  if (std::string why = integer_grid::refuses(with_f16, out, in); !why.empty()) return why;
  if (std::string why = integer_grid::refuses_odd_bits(spec); !why.empty()) return why;
  if (act_order && spec.groups(in) == 1) return "one group per row leaves no groups to reorder (act-order)";
  return "";
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  const int64_t groups = spec.groups(in);
  const auto words = [&](const char* suffix, Shape written, Shape dense) {
    return TensorPlan{suffix, DType::i32, written, {{DType::i32, dense}}};
  };
  std::vector<TensorPlan> plan = {
      words("weight_packed", {out, released_words(in, spec.bits)}, {out, dense_words(in, spec.bits)}),
      ct::scale_plan(spec, out, in),
      {"weight_shape", DType::i64, {2}}};
  if (!spec.symmetric)
    plan.push_back(
        words("weight_zero_point", {released_words(out, spec.bits), groups}, {dense_words(out, spec.bits), groups}));
  if (act_order) plan.push_back({"weight_g_idx", DType::i32, {in}});
  return plan;
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  FEWBIT_ASSERT(!q.input_scale && !q.global_scale);
  validate(q);
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  p.tensors.push_back({prefix + "weight_packed", pack_codes(q.codes, q.spec.bits)});
  p.tensors.push_back({prefix + "weight_scale", ct::scales_to_file(q, ct::scale_plan(q.spec, q.out(), q.in()).shape)});
  p.tensors.push_back({prefix + "weight_shape", shape_tensor(q.out(), q.in())});
  if (q.zeros) p.tensors.push_back({prefix + "weight_zero_point", pack_zeros(*q.zeros, q.spec.bits)});
  if (q.group_of) p.tensors.push_back({prefix + "weight_g_idx", clone_host(*q.group_of)});
  return p;
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  if (const std::string why = refuses(spec, out, in, false); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read as pack-quantized: " + why);
  const std::vector<TensorPlan> plan = tensors(spec, out, in, false);
  QuantizedLinear q;
  q.spec = spec;
  q.codes = unpack_codes(expect_tensor(source, linear, plan[0]), in, spec.bits);
  q.scales = ct::scales_from_file(source, linear, plan[1], spec, {out, in});
  expect_shape(expect_tensor(source, linear, plan[2]), out, in, linear);
  if (!spec.symmetric) q.zeros = unpack_zeros(expect_tensor(source, linear, plan[3]), out, spec.bits);
  const TensorPlan g_idx{"weight_g_idx", DType::i32, {in}};
  const std::string name = std::string(linear) + '.' + g_idx.suffix;
  if (source(name).data) q.group_of = read_groups(expect_tensor(source, linear, g_idx), spec, name);
  return q;
}

}  // namespace

constinit const Packing packing_ct_pack = {
    .name = "ct_pack",
    .summary = "compressed-tensors pack-quantized: weight-only integers in plain order",
    .refuses = refuses,
    .tensors = tensors,
    .pack = pack,
    .unpack = unpack,
};

}  // namespace fewbit
