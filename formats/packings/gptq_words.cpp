// Codes are stored transposed, so both directions work on 16 outputs at a time: 16 neighbouring columns of
// words are one cache line.
#include "formats/packings/gptq_words.h"

#include <algorithm>

#include "formats/bits.h"
#include "formats/packings/integer_grid.h"
#include "src/core/parallel.h"

namespace fewbit::gptq_words {
namespace {

constexpr int64_t kColumns = 16;

int64_t same_column(int64_t n) { return n; }

Tensor pack_codes(const QuantizedLinear& q) {
  const int64_t out = q.out(), in = q.in(), rows = bits::words_for(in, q.spec.bits);
  Tensor words = Tensor::host(DType::i32, {rows, out});
  uint32_t* to = words.as<uint32_t>();
  parallel_for(out, 4 * kColumns, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> column(static_cast<size_t>(kColumns * rows));
    for (int64_t n0 = begin; n0 < end; n0 += kColumns) {
      const int64_t count = std::min(kColumns, end - n0);
      for (int64_t j = 0; j < count; ++j)
        bits::pack_run(q.codes.as<uint8_t>() + (n0 + j) * in, in, q.spec.bits, column.data() + j * rows);
      for (int64_t w = 0; w < rows; ++w)
        for (int64_t j = 0; j < count; ++j) to[w * out + n0 + j] = column[static_cast<size_t>(j * rows + w)];
    }
  });
  return words;
}

Tensor unpack_codes(ConstTensorView words, const QuantSpec& spec, int64_t out, int64_t in) {
  const int64_t rows = words.shape[0];
  Tensor codes = Tensor::host(DType::u8, {out, in});
  parallel_for(out, 4 * kColumns, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> column(static_cast<size_t>(kColumns * rows));
    for (int64_t n0 = begin; n0 < end; n0 += kColumns) {
      const int64_t count = std::min(kColumns, end - n0);
      for (int64_t w = 0; w < rows; ++w)
        for (int64_t j = 0; j < count; ++j)
          column[static_cast<size_t>(j * rows + w)] = bits::load<uint32_t>(words.data, w * out + n0 + j);
      for (int64_t j = 0; j < count; ++j)
        bits::unpack_run(column.data() + j * rows, in, spec.bits, codes.as<uint8_t>() + (n0 + j) * in);
    }
  });
  return codes;
}

Tensor pack_zeros(const QuantizedLinear& q, ZeroOffset offset) {
  const int64_t out = q.out(), groups = q.groups(), cols = bits::words_for(out, q.spec.bits);
  const int minus = static_cast<int>(offset);
  Tensor words = Tensor::host(DType::i32, {groups, cols});
  std::vector<uint8_t> row(static_cast<size_t>(out));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < out; ++n) {
      const int zero = q.zeros ? q.zeros->as<uint8_t>()[n * groups + g] : q.spec.mid_code();
      FEWBIT_ASSERT(zero >= minus);
      row[static_cast<size_t>(n)] = static_cast<uint8_t>(zero - minus);
    }
    bits::pack_run(row.data(), out, q.spec.bits, words.as<uint32_t>() + g * cols);
  }
  return words;
}

// v1 zero points come from writers that subtracted one field by field and from writers that subtracted
// 0x11111111 from the whole word. Adding that to the word undoes both: they differ only where a zero point is
// 0, and there the field-wise writers have destroyed the neighbouring fields anyway. At 3 bits everyone works
// by field.
Tensor unpack_zeros(ConstTensorView words, const QuantSpec& spec, int64_t out, ZeroOffset offset) {
  const int64_t groups = words.shape[0], cols = words.shape[1];
  const bool by_field = spec.bits == 3 && offset == ZeroOffset::one;
  const uint32_t plus = by_field || offset == ZeroOffset::none ? 0 : bits::repeated(1, spec.bits);
  Tensor zeros = Tensor::host(DType::u8, {out, groups});
  std::vector<uint32_t> line(static_cast<size_t>(cols));
  std::vector<uint8_t> row(static_cast<size_t>(out));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < cols; ++c)
      line[static_cast<size_t>(c)] = bits::load<uint32_t>(words.data, g * cols + c) + plus;
    bits::unpack_run(line.data(), out, spec.bits, row.data());
    for (int64_t n = 0; n < out; ++n) {
      const int zero = row[static_cast<size_t>(n)] + (by_field ? 1 : 0);
      zeros.as<uint8_t>()[n * groups + g] = static_cast<uint8_t>(zero & spec.max_code());
    }
  }
  return zeros;
}

Tensor write_groups(const QuantizedLinear& q) {
  if (q.group_of) return clone_host(*q.group_of);
  const int64_t in = q.in(), size = q.spec.group_size(in);
  Tensor g_idx = Tensor::host(DType::i32, {in});
  for (int64_t k = 0; k < in; ++k) g_idx.as<int32_t>()[k] = static_cast<int32_t>(k / size);
  return g_idx;
}

}  // namespace

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in) {
  const int64_t groups = spec.groups(in);
  return {{"qweight", DType::i32, {bits::words_for(in, spec.bits), out}},
          {"qzeros", DType::i32, {groups, bits::words_for(out, spec.bits)}},
          {"scales", DType::f16, {groups, out}},
          {"g_idx", DType::i32, {in}}};
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q, ZeroOffset offset) {
  FEWBIT_ASSERT(integer_grid::refuses(q.spec, q.out(), q.in()).empty());
  FEWBIT_ASSERT(!q.input_scale && !q.global_scale);
  validate(q);
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  p.tensors.push_back({prefix + "qweight", pack_codes(q)});
  p.tensors.push_back({prefix + "qzeros", pack_zeros(q, offset)});
  p.tensors.push_back({prefix + "scales", integer_grid::scales_to_file(q.scales, same_column)});
  p.tensors.push_back({prefix + "g_idx", write_groups(q)});
  return p;
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, Shape out_in, const TensorSource& source,
                       ZeroOffset offset) {
  const int64_t out = out_in[0], in = out_in[1];
  const std::string prefix = std::string(linear) + '.';
  if (const std::string why = integer_grid::refuses(spec, out, in); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read as GPTQ words: " + why);
  const std::vector<TensorPlan> plan = tensors(spec, out, in);
  QuantizedLinear q;
  q.spec = spec;
  q.codes = unpack_codes(expect_tensor(source, linear, plan[0]), spec, out, in);
  q.zeros = integer_grid::zeros_from_file(unpack_zeros(expect_tensor(source, linear, plan[1]), spec, out, offset), spec,
                                          prefix + "qzeros");
  q.scales = integer_grid::scales_from_file(expect_tensor(source, linear, plan[2]), prefix + "scales", same_column);
  q.group_of = integer_grid::groups_from_file(expect_tensor(source, linear, plan[3]), spec, prefix + "g_idx");
  return q;
}

}  // namespace fewbit::gptq_words
