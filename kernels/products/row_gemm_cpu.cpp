// Products with the CPU's own layout of integer linears. Few rows of x: a sum for each group, over levels that are made
// in registers as the codes come from memory (nibble_dot.h, bytes/byte_dot.h) or, where those loops do not fit, in
// memory first. Many rows: tiles of the weight are made in f32 and multiplied by BLAS.
#include "kernels/products/row_gemm.h"

#include <algorithm>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/products/bytes/byte_dot.h"
#include "kernels/products/nibble_dot.h"
#include "kernels/products/tile_weights.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {

// out[2 i], out[2 i + 1] = low and high nibble of bytes[i], less zero; n codes.
FEWBIT_HOT void nibble_levels(const uint8_t* bytes, float zero, float* out, int64_t n) {
  for (int64_t i = 0; i < n / 2; ++i) {
    out[2 * i] = static_cast<float>(bytes[i] & 15) - zero;
    out[2 * i + 1] = static_cast<float>(bytes[i] >> 4) - zero;
  }
  if (n % 2) out[n - 1] = static_cast<float>(bytes[n / 2] & 15) - zero;
}

FEWBIT_HOT void byte_levels(const uint8_t* bytes, float zero, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(bytes[i]) - zero;
}

}  // namespace hot

namespace {

// Reads rows of the linear as levels or as values.
struct RowReader {
  const RowPackedView& w;
  int64_t groups, row_bytes;
  bool nibbles;

  explicit RowReader(const RowPackedView& v)
      : w(v), groups(v.scales.cols()), row_bytes(v.codes.cols()), nibbles(v.bits <= 4) {}

  float scale(int64_t o, int64_t g) const { return w.scales.as<float>()[o * groups + g]; }
  float zero(int64_t o, int64_t g) const {
    return w.zeros.data ? static_cast<float>(w.zeros.as<uint8_t>()[o * groups + g])
                        : static_cast<float>(1 << (w.bits - 1));
  }
  // Levels of columns [begin, end) of row o, which share a zero. A range of nibbles begins at an even column.
  void levels(int64_t o, int64_t begin, int64_t end, float zero, float* out) const {
    const uint8_t* row = w.codes.as<uint8_t>() + o * row_bytes;
    nibbles ? hot::nibble_levels(row + begin / 2, zero, out, end - begin)
            : hot::byte_levels(row + begin, zero, out, end - begin);
  }
  // Whether groups are ranges of columns, which begin at even ones where codes are nibbles.
  bool by_ranges() const { return !w.group_of.data && (!nibbles || w.group % 2 == 0 || groups == 1); }

  // The values of row o, [in].
  void values(int64_t o, float* out) const {
    if (by_ranges()) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = g * w.group, end = std::min(w.in, begin + w.group);
        levels(o, begin, end, zero(o, g), out + begin);
        const float s = scale(o, g);
        for (int64_t i = begin; i < end; ++i) out[i] *= s;
      }
      return;
    }
    levels(o, 0, w.in, 0, out);
    for (int64_t i = 0; i < w.in; ++i) {
      const int64_t g = w.group_of.data ? w.group_of.as<int32_t>()[i] : i / w.group;
      out[i] = (out[i] - zero(o, g)) * scale(o, g);
    }
  }
};

// x [rows, in] as f32, in scratch memory of this thread; the others only read it.
const float* widened(ConstTensorView x) {
  float* xs = scratch(Scratch::x, x.numel());
  widen_rows(x.dtype, x.data, x.rows(), x.cols(), x.cols(), xs);
  return xs;
}

void few_rows(ConstTensorView x, const RowReader& reader, ConstTensorView bias, TensorView y) {
  const RowPackedView& w = reader.w;
  const int64_t rows = x.rows(), in = w.in;
  const float* xs = widened(x);
  product_by_outputs(rows, w.out(), reader.row_bytes, bias, y, [&](int64_t o, float* sums) {
    float* row = scratch(Scratch::w, in);
    if (!reader.by_ranges()) {
      reader.values(o, row);
      for (int64_t r = 0; r < rows; ++r) sums[r] = dot(xs + r * in, row, in);
      return;
    }
    std::fill_n(sums, rows, 0.f);
    for (int64_t g = 0; g < reader.groups; ++g) {
      const int64_t c0 = g * w.group, c1 = std::min(in, c0 + w.group);
      reader.levels(o, c0, c1, reader.zero(o, g), row);
      for (int64_t r = 0; r < rows; ++r) sums[r] += reader.scale(o, g) * dot(xs + r * in + c0, row, c1 - c0);
    }
  });
}

void few_nibble_rows(ConstTensorView x, const RowPackedView& w, ConstTensorView bias, TensorView y) {
  const NibbleInput input(w, x);
  product_by_outputs(x.rows(), w.out(), w.codes.cols(), bias, y,
                     [&](int64_t o, float* sums) { nibble_dots(w, input, o, sums); });
}

void few_byte_rows(ConstTensorView x, const RowReader& reader, ConstTensorView bias, TensorView y) {
  const RowPackedView& w = reader.w;
  const int64_t rows = x.rows(), in = w.in, groups = reader.groups;
  const float* xs = widened(x);
  product_by_outputs(rows, w.out(), reader.row_bytes, bias, y, [&](int64_t o, float* sums) {
    const LevelRow row{.codes = w.codes.as<uint8_t>() + o * in,
                       .scales = w.scales.as<float>() + o * groups,
                       .zeros = w.zeros.data ? w.zeros.as<uint8_t>() + o * groups : nullptr,
                       .zero = 1 << (w.bits - 1),
                       .group = groups == 1 ? in : w.group,
                       .in = in};
    level_dots(vector_set(), row, xs, rows, sums);
  });
}

}  // namespace

void row_gemm(Exec&, ConstTensorView x, const RowPackedView& w, ConstTensorView bias, TensorView y) {
  const RowReader reader(w);
  FEWBIT_ASSERT(x.cols() == w.in && y.rows() == x.rows() && y.cols() == w.out() && w.bits >= 1 && w.bits <= 8);
  FEWBIT_ASSERT(w.codes.dtype == DType::u8 && reader.row_bytes == (reader.nibbles ? (w.in + 1) / 2 : w.in));
  FEWBIT_ASSERT(w.scales.dtype == DType::f32 && w.scales.rows() == w.out());
  FEWBIT_ASSERT(w.group_of.data || reader.groups * w.group >= w.in);
  FEWBIT_ASSERT(!bias.data || (bias.numel() == w.out() && bias.dtype == x.dtype));
  if (x.dtype == DType::bf16)
    if (const auto tiles = tile_weight(w)) return tile_product(x, *tiles, nullptr, bias, y);
  if (x.rows() <= kRowsByOutputs) {
    if (nibble_dots_fit(w)) return few_nibble_rows(x, w, bias, y);
    if (!reader.nibbles && !w.group_of.data && level_dots_fit(w.in, reader.groups == 1 ? w.in : w.group))
      return few_byte_rows(x, reader, bias, y);
    return few_rows(x, reader, bias, y);
  }
  const auto weight = [&](int64_t begin, int64_t end, float* out) {
    for (int64_t o = begin; o < end; ++o) reader.values(o, out + (o - begin) * w.in);
    return out;
  };
  tiled_product(x, w.out(), weight, bias, y);
}

}  // namespace fewbit::cpu
