// Rows of x become codes once; then strip by strip, as block_gemm_cpu.cpp. plain_strip() is the readable truth, and
// what runs on other machines.
#include "kernels/products/blocks/block_int8.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/grids/row_grid.h"
#include "kernels/products/blocks/block_dot.h"
#include "kernels/products/blocks/int8_dot.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {

// Codes of 32 columns; a part with a NaN or an infinity is zeros under a scale that says so.
FEWBIT_HOT void int8_part(const float* x, float* scale, int8_t* codes) {
  float most = 0;
  uint32_t bits = 0;  // of magnitudes: as integers a NaN is the largest
  for (int64_t i = 0; i < kChunkCols; ++i) bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  most = std::bit_cast<float>(bits);
  *scale = row_scale(most, 0, 127.f);
  const float inverse = bits >= 0x7f800000u ? 0.f : 1.f / *scale;
  for (int64_t i = 0; i < kChunkCols; ++i) {
    const float level = bits >= 0x7f800000u ? 0.f : int8_level(mul_rn(x[i], inverse));
    codes[i] = static_cast<int8_t>(static_cast<int>(level));
  }
}

// total[lane] = fma(sum over the group's columns of levels[column][lane] * codes[column], scale[lane] * of_x, total)
FEWBIT_HOT void add_whole_group(const int32_t* levels, const int8_t* codes, int64_t group, const float* scale,
                                float of_x, float* total) {
  int32_t sum[kLanes] = {};
  for (int64_t i = 0; i < group; ++i)
    for (int64_t l = 0; l < kLanes; ++l) sum[l] += levels[i * kLanes + l] * codes[i];
  for (int64_t l = 0; l < kLanes; ++l)
    total[l] = std::fma(static_cast<float>(sum[l]), mul_rn(scale[l], of_x), total[l]);
}

FEWBIT_HOT void add_scaled_minima(const float* minima, float sum, float* total) {
  for (int64_t l = 0; l < kLanes; ++l) total[l] = std::fma(minima[l], sum, total[l]);
}

}  // namespace hot

namespace {

constexpr int64_t kRowsAtATime = 256;  // of a prompt, whose sums with a strip are kept

// The codes of x: in the order of the columns, and as the loops of a form read them.
struct Codes {
  Tensor natural, low, high;  // i8 [rows, in]; one of natural and low
  Tensor scales, sums, scaled;
  CodedRows rows;

  Codes(ConstTensorView x, const BlockForm& f, bool plain) {
    const int64_t n = x.rows(), in = x.cols(), groups = in / f.group;
    const int of_low = f.bits == 8 ? 8 : f.bits >= 4 ? 4 : 2, of_high = f.bits - of_low;
    scales = Tensor::host(DType::f32, {n, in / kChunkCols});
    sums = Tensor::host(DType::i32, {n, groups});
    if (f.minima) scaled = Tensor::host(DType::f32, {n, groups});
    (plain ? natural : low) = Tensor::host(DType::i8, {n, in});
    if (!plain && of_high) high = Tensor::host(DType::i8, {n, in});
    std::array<std::array<uint8_t, kChunkCols>, 2> order{};
    for (int i = 0; i < kChunkCols; ++i) {
      order[0][static_cast<size_t>(i)] = static_cast<uint8_t>(plain ? i : plane_order(of_low, i));
      order[1][static_cast<size_t>(i)] = static_cast<uint8_t>(of_high ? plane_order(of_high, i) : i);
    }
    int8_t* const to[2] = {(plain ? natural : low).as<int8_t>(), high.empty() ? nullptr : high.as<int8_t>()};
    const int64_t parts = in / kChunkCols;
    parallel_for(n * parts, 1 << 9, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        alignas(64) float values[kChunkCols];
        alignas(64) int8_t codes[kChunkCols];
        widen(x.as<bf16>() + at * kChunkCols, values, kChunkCols);
        hot::int8_part(values, scales.as<float>() + at, codes);
        for (size_t p = 0; p < 2; ++p)
          for (size_t i = 0; to[p] && i < kChunkCols; ++i)
            to[p][at * kChunkCols + static_cast<int64_t>(i)] = codes[order[p][i]];
        for (int64_t i = 0, g = at * kChunkCols / f.group; i < kChunkCols; i += f.group, ++g) {
          int32_t sum = 0;
          for (int64_t c = i; c < i + f.group; ++c) sum += codes[c];
          sums.as<int32_t>()[g] = sum;
          if (f.minima) scaled.as<float>()[g] = mul_rn(scales.as<float>()[at], static_cast<float>(sum));
        }
      }
    });
    rows = {.rows = n,
            .in = in,
            .group = f.group,
            .low = to[0],
            .high = to[1],
            .scales = scales.as<float>(),
            .sums = sums.as<int32_t>(),
            .scaled = f.minima ? scaled.as<float>() : nullptr};
  }
  // Rows [first, first + count).
  CodedRows part(int64_t first, int64_t count) const {
    CodedRows p = rows;
    p.rows = count;
    p.low += first * p.in;
    if (p.high) p.high += first * p.in;
    p.scales += first * (p.in / kChunkCols);
    p.sums += first * (p.in / p.group);
    if (p.scaled) p.scaled += first * (p.in / p.group);
    return p;
  }
};

// All rows, 32 columns of a half at a time; x in the order of its columns. The readable truth.
void plain_strip(const Int8Strip& w, const CodedRows& x, float* totals) {
  const BlockForm& f = w.form;
  const int64_t groups = x.in / f.group;
  std::fill_n(totals, x.rows * kStripOuts, 0.f);
  std::array<float, kChunkCols * kLanes> values;
  std::array<int32_t, kChunkCols * kLanes> levels;
  const uint8_t* first = w.bytes + f.heads_bytes(x.in);
  for (int64_t at = 0; at < 2 * x.in; at += kChunkCols) {
    const int64_t half = at / kChunkCols % 2, c = (at / kChunkCols - half) / 2 * kChunkCols;
    const uint8_t* codes = first + c / kChunkCols * f.chunk_bytes() + half * kLineBytes;
    chunk_levels(f, codes, values.data());
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<int32_t>(values[i]);
    for (int64_t r = 0; r < x.rows; ++r)
      for (int64_t i = 0; i < kChunkCols; i += f.group) {
        const int64_t g = (c + i) / f.group, scale = (half * groups + g) * kLanes;
        float* total = totals + r * kStripOuts + half * kLanes;
        hot::add_whole_group(levels.data() + i * kLanes, x.low + r * x.in + c + i, f.group, w.scales + scale,
                             x.scales[r * (x.in / kChunkCols) + c / kChunkCols], total);
        if (f.minima) hot::add_scaled_minima(w.minima + scale, x.scaled[r * groups + g], total);
      }
  }
}

}  // namespace

const char* refuses_int8(const BlockForm& f) {
  if (f.group > kChunkCols) return "groups of more columns than share a scale of x have no product with int8";
  if (f.e4m3) return "FP8 codes have no product with int8";
  if (f.bits == 8) return "";
  if (f.bits == 3) return "codes of 3 bits have no product with int8";
  for (size_t i = 0; i < size_t{1} << f.bits; ++i)
    if (f.levels[i] != f.levels[0] + static_cast<float>(i) || f.levels[i] != std::floor(f.levels[i]))
      return "levels that are not whole numbers in a row have no product with int8";
  return f.bits == 5 && f.group == 16 ? "codes of 5 bits in groups of 16 have no product with int8" : "";
}

Int8Loops int8_loops() {
  return has_int8_dots() ? Int8Loops::avx512 : has_wide_int8_dots() ? Int8Loops::avx2 : Int8Loops::plain;
}

void block_int8_gemm(Exec&, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y,
                     Int8Loops loops) {
  const BlockForm& f = *w.form;
  const int64_t rows = x.rows(), in = w.in, strips = w.strips.rows(), each = in / f.group * kStripOuts;
  FEWBIT_ASSERT(x.dtype == DType::bf16 && x.cols() == in && y.rows() == rows && y.cols() == w.out);
  FEWBIT_ASSERT(in % f.columns == 0 && w.strips.cols() == f.strip_bytes(in) && strips * kStripOuts >= w.out);
  FEWBIT_ASSERT(!bias.data || (bias.numel() == w.out && bias.dtype == x.dtype));
  FEWBIT_ASSERT(*refuses_int8(f) == 0 && loops <= int8_loops());
  const bool plain = loops == Int8Loops::plain;
  const auto multiply = plain ? plain_strip : loops == Int8Loops::avx2 ? wide_int8_dots : int8_dots;
  const auto make_scales = plain ? strip_scales : fast_scales();
  const Codes codes(x, f, plain);
  const int64_t grain = std::max<int64_t>(1, rows > kRowsByOutputs ? 1 : kBytesAtOnce / w.strips.cols());
  parallel_for(strips, grain, [&](int64_t begin, int64_t end) {
    float* room = scratch(Scratch::w, 2 * each + 16);
    float* scales = room + (64 - reinterpret_cast<uintptr_t>(room) % 64) % 64 / sizeof(float);
    float* sums = scratch(Scratch::y, std::min(rows, kRowsAtATime) * kStripOuts);
    for (int64_t s = begin; s < end; ++s) {
      const Int8Strip strip{.form = f, .bytes = w.strip(s), .scales = scales, .minima = scales + each};
      make_scales(f, in, strip.bytes, scales, scales + each);
      const int64_t o = s * kStripOuts, past = std::min(w.out, o + kStripOuts);
      for (int64_t first = 0; first < rows; first += kRowsAtATime) {
        const CodedRows part = codes.part(first, std::min(kRowsAtATime, rows - first));
        multiply(strip, part, sums);
        for (int64_t r = 0; r < part.rows; ++r) store_row(sums + r * kStripOuts, bias, o, past, y, first + r);
      }
    }
  });
}

void block_int8_gemm(Exec& ex, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y) {
  block_int8_gemm(ex, x, w, bias, y, int8_loops());
}

}  // namespace fewbit::cpu
