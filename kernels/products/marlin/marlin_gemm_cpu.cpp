// The CPU half of the Marlin product: reads the words through the index map of src/core/marlin_layout.h, 64 outputs at
// a time.
#include "kernels/products/marlin/marlin_gemm.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "src/core/marlin_layout.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kFewRows =
    16;  // up to here sums are kept by group and scaled in f32; beyond, the weight is dequantized

// The place of every (word, field) inside of a 16 x 64 tile, so that the index map is evaluated only once.
struct Place {
  uint8_t k = 0, n = 0;
};
template <int kBits>
constexpr auto tile_places() {
  std::array<Place, marlin::kTileK * marlin::kTileN> places{};
  constexpr int kFields = 32 / kBits;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [k, n] = marlin::element_of(0, static_cast<int64_t>(i) / kFields, static_cast<int>(i) % kFields, kBits);
    places[i] = {static_cast<uint8_t>(k), static_cast<uint8_t>(n)};
  }
  return places;
}

void check(const MarlinView& w) {
  FEWBIT_ASSERT(w.bits == 4 || w.bits == 8);
  FEWBIT_ASSERT(w.in % marlin::kTileK == 0 && w.out % marlin::kTileN == 0 && w.in % w.groups() == 0);
  FEWBIT_ASSERT(w.b.numel() == w.in / marlin::kTileK * marlin::words_per_row(w.out, w.bits) && w.b.dtype == DType::i32);
  FEWBIT_ASSERT(w.s.dtype == DType::f16 && w.s.cols() == w.out);
  FEWBIT_ASSERT(!w.z.data ||
                (w.z.dtype == DType::i32 && w.z.rows() == w.groups() && w.z.cols() == w.out * w.bits / 32));
}

float scale_at(const MarlinView& w, int64_t g, int64_t n) {
  return w.s.as<f16>()[g * w.out + marlin::scale_column(n, w.groups() > 1)];
}

float zero_at(const MarlinView& w, int64_t g, int64_t n) {
  if (!w.z.data) return static_cast<float>(1 << (w.bits - 1));
  const marlin::WordPos p = marlin::zero_of(g, n, w.bits);
  const uint32_t word = w.z.as<uint32_t>()[p.row * w.z.cols() + p.col];
  return static_cast<float>((word >> (p.field * w.bits)) & ((1u << w.bits) - 1));
}

// levels [64, in]: code - zero of outputs [n0, n0 + 64).
template <int kBits>
void unpack_levels(const MarlinView& w, int64_t n0, float* levels) {
  static constexpr auto kPlaces = tile_places<kBits>();
  constexpr int kFields = 32 / kBits;
  constexpr int64_t kWords = marlin::kTileK * marlin::kTileN / kFields;
  const int64_t group = w.group(), row_words = marlin::words_per_row(w.out, kBits);
  std::array<float, marlin::kTileN> zeros{};
  for (int64_t k0 = 0; k0 < w.in; k0 += marlin::kTileK) {
    if (k0 % group == 0)
      for (int64_t n = 0; n < marlin::kTileN; ++n) zeros[static_cast<size_t>(n)] = zero_at(w, k0 / group, n0 + n);
    const uint32_t* words = w.b.as<uint32_t>() + k0 / marlin::kTileK * row_words + n0 / marlin::kTileN * kWords;
    for (size_t i = 0; i < kPlaces.size(); ++i) {
      const uint32_t code = (words[i / kFields] >> (i % kFields * kBits)) & ((1u << kBits) - 1);
      levels[kPlaces[i].n * w.in + k0 + kPlaces[i].k] = static_cast<float>(code) - zeros[kPlaces[i].n];
    }
  }
}

void levels_of(const MarlinView& w, int64_t n0, float* levels) {
  w.bits == 4 ? unpack_levels<4>(w, n0, levels) : unpack_levels<8>(w, n0, levels);
}

// values [64, in]: the weights of outputs [n0, n0 + 64), rounded to bf16 if that is `dtype`.
void values_of(const MarlinView& w, int64_t n0, DType dtype, float* values) {
  levels_of(w, n0, values);
  for (int64_t n = 0; n < marlin::kTileN; ++n)
    for (int64_t k = 0; k < w.in; ++k) {
      float& v = values[n * w.in + k];
      v *= scale_at(w, k / w.group(), n0 + n);
      if (dtype == DType::bf16) v = round_to_bf16(v);
    }
}

void few_rows(ConstTensorView x, const MarlinView& w, ConstTensorView bias, TensorView y) {
  const int64_t rows = x.rows(), group = w.group();
  float* xs = scratch(Scratch::x, x.numel());  // of this thread; the others only read it
  widen_rows(x.dtype, x.data, rows, w.in, w.in, xs);
  parallel_for(w.out / marlin::kTileN, 1, [&](int64_t run, int64_t) {
    const int64_t n0 = run * marlin::kTileN;
    float* levels = scratch(Scratch::w, marlin::kTileN * w.in);
    levels_of(w, n0, levels);
    for (int64_t r = 0; r < rows; ++r) {
      std::array<float, marlin::kTileN> sums{};
      for (int64_t n = 0; n < marlin::kTileN; ++n)
        for (int64_t g = 0; g < w.groups(); ++g)
          sums[static_cast<size_t>(n)] +=
              scale_at(w, g, n0 + n) * dot(xs + r * w.in + g * group, levels + n * w.in + g * group, group);
      store_row(sums.data(), bias, n0, n0 + marlin::kTileN, y, r);
    }
  });
}

}  // namespace

void marlin_gemm(Exec&, ConstTensorView x, const MarlinView& w, ConstTensorView bias, TensorView y) {
  check(w);
  FEWBIT_ASSERT(x.cols() == w.in && y.rows() == x.rows() && y.cols() == w.out);
  FEWBIT_ASSERT(!bias.data || (bias.numel() == w.out && bias.dtype == x.dtype));
  if (x.rows() <= kFewRows) return few_rows(x, w, bias, y);
  const auto weight = [&](int64_t begin, int64_t end, float* out) {  // tiles of outputs are multiples of 64
    for (int64_t n = begin; n < end; n += marlin::kTileN) values_of(w, n, x.dtype, out + (n - begin) * w.in);
    return out;
  };
  tiled_product(x, w.out, weight, bias, y);
}

void marlin_gemms(Exec& ex, ConstTensorView x, std::span<const MarlinProduct> products) {
  for (const MarlinProduct& p : products) {
    if (!p.add) {
      cpu::marlin_gemm(ex, x, p.w, p.bias, p.y);
      continue;
    }
    FEWBIT_ASSERT(!p.bias.data);
    const Tensor product = Tensor::host(DType::f32, {x.rows(), p.w.out});
    cpu::marlin_gemm(ex, x, p.w, {}, product);
    add_product(product, p.y);
  }
}

void marlin_dequantize(Exec&, const MarlinView& m, TensorView w) {
  check(m);
  FEWBIT_ASSERT(w.rows() == m.out && w.cols() == m.in);
  for_float_type(w.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(m.out / marlin::kTileN, 1, [&](int64_t run, int64_t) {
      const int64_t n0 = run * marlin::kTileN;
      float* values = scratch(Scratch::w, marlin::kTileN * m.in);
      values_of(m, n0, DType::f32, values);
      narrow(values, w.as<T>() + n0 * m.in, marlin::kTileN * m.in);
    });
  });
}

}  // namespace fewbit::cpu
