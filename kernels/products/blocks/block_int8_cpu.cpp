// Rows of x become codes once; then strip by strip, as block_gemm_cpu.cpp. plain_strip() is the readable truth, and
// what runs on other machines.
#include "kernels/products/blocks/block_int8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

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

// The same of a group whose scale comes later: block[lane] = fma(sum, of_x, block[lane])
FEWBIT_HOT void add_to_block(const int32_t* levels, const int8_t* codes, float of_x, float* block) {
  int32_t sum[kLanes] = {};
  for (int64_t i = 0; i < kChunkCols; ++i)
    for (int64_t l = 0; l < kLanes; ++l) sum[l] += levels[i * kLanes + l] * codes[i];
  for (int64_t l = 0; l < kLanes; ++l) block[l] = std::fma(static_cast<float>(sum[l]), of_x, block[l]);
}

FEWBIT_HOT void add_block(float* block, const float* scale, float* total) {
  for (int64_t l = 0; l < kLanes; ++l) {
    total[l] = std::fma(block[l], scale[l], total[l]);
    block[l] = 0;
  }
}

FEWBIT_HOT void add_scaled_minima(const float* minima, float sum, float* total) {
  for (int64_t l = 0; l < kLanes; ++l) total[l] = std::fma(minima[l], sum, total[l]);
}

}  // namespace hot

namespace {

constexpr int64_t kRowsAtATime = 256;   // of a prompt, whose sums with a strip are kept
constexpr int64_t kCodesAtOnce = 8192;  // of x: the least work of a thread

// How the codes of x lie for the loops that read them.
struct CodeOrder {
  PlaneOrder low{}, high{};
  int of_high = 0;  // bits of the second plane
  int offset = 0;   // of a level to the code that the loop multiplies
  bool tiles = false;

  CodeOrder(const BlockForm& f, Int8Loops loops) : tiles(loops == Int8Loops::avx512) {
    const bool plain = loops == Int8Loops::plain;
    const int of_low = f.bits == 8 ? 8 : f.bits >= 4 ? 4 : 2;
    of_high = plain ? 0 : f.bits - of_low;
    if (!plain) offset = f.bits < 8 ? static_cast<int>(f.levels[0]) : tiles ? -128 : 0;
    for (size_t i = 0; i < low.size(); ++i) {
      low[i] = static_cast<uint8_t>(plain ? i : static_cast<size_t>(plane_order(of_low, static_cast<int>(i))));
      high[i] = static_cast<uint8_t>(of_high ? plane_order(of_high, static_cast<int>(i)) : 0);
    }
  }
  // Rows of the tile in which row r stands, and its first one.
  std::array<int64_t, 2> tile_of(int64_t r, int64_t rows) const {
    if (!tiles) return {1, r};
    const int64_t whole = rows / kInt8Tile * kInt8Tile;
    if (r < whole) return {kInt8Tile, r / kInt8Tile * kInt8Tile};
    for (int64_t first = whole, count = 0;; first += count)
      if (count = int8_tile(rows - first); r < first + count) return {count, first};
  }
  // Codes of 32 columns, in order.
  CodedPart code(const bf16* x, int8_t* to_low, int8_t* to_high) const {
    if (tiles) return code_part(x, low, to_low, high, to_high);
    CodedPart part;
    alignas(64) float values[kChunkCols];
    alignas(64) int8_t codes[kChunkCols];
    widen(x, values, kChunkCols);
    hot::int8_part(values, &part.scale, codes);
    for (size_t i = 0; i < kChunkCols; ++i) {
      to_low[i] = codes[low[i]];
      if (to_high) to_high[i] = codes[high[i]];
      part.sums[i / kLanes] += codes[i];
    }
    return part;
  }
};

// Makes the codes of x, in scratch memory of this thread; others only read it.
CodedRows coded(ConstTensorView x, const BlockForm& f, Int8Loops loops) {
  const CodeOrder order(f, loops);
  const int64_t n = x.rows(), in = x.cols(), span = int8_span(f), parts = in / kChunkCols,
                of_part = kChunkCols / f.group;
  const int64_t of_codes = (n * in + 3) / 4, groups = parts * of_part, spans = in / span;
  float* room = scratch(Scratch::x, of_codes * (order.of_high ? 2 : 1) + n * (parts + groups + spans));
  auto* low = reinterpret_cast<int8_t*>(room);
  auto* high = order.of_high ? reinterpret_cast<int8_t*>(room += of_codes) : nullptr;
  float* scales = room + of_codes;
  auto* starts = reinterpret_cast<int32_t*>(scales + n * parts);
  float* scaled = f.minima ? scales + n * (parts + groups) : nullptr;
  const int64_t unit = std::max(span, kChunkCols), units = in / unit;  // a minimum's columns by one thread
  parallel_for(n * units, std::max<int64_t>(1, kCodesAtOnce / unit), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * unit; at < end * unit; at += kChunkCols) {
      const int64_t r = at / in, c = at % in / kChunkCols;
      const auto [count, first] = order.tile_of(r, n);
      // Of item i of `each` in a row.
      const auto place = [&, count = count, first = first](int64_t i, int64_t each) {
        return first * each + i * count + r - first;
      };
      const int64_t to = place(c, parts) * kChunkCols;
      const CodedPart part = order.code(x.as<bf16>() + at, low + to, high ? high + to : nullptr);
      scales[place(c, parts)] = part.scale;
      for (int64_t i = 0; i < of_part; ++i) {
        const int32_t sum = of_part == 2 ? part.sums[static_cast<size_t>(i)] : part.sums[0] + part.sums[1];
        starts[place(c * of_part + i, groups)] = order.offset * sum;
        if (!scaled) continue;
        float& of_span = scaled[place((c * kChunkCols + i * f.group) / span, spans)];
        const float product = mul_rn(part.scale, static_cast<float>(sum));
        of_span = span > kChunkCols && c * kChunkCols % span != 0 ? of_span + product : product;
      }
    }
  });
  return {.rows = n,
          .in = in,
          .group = f.group,
          .span = span,
          .low = low,
          .high = high,
          .scales = scales,
          .starts = starts,
          .scaled = scaled};
}

// All rows, 32 columns of a half at a time; x in the order of its columns. The readable truth.
void plain_strip(const Int8Strip& w, const CodedRows& x, float* totals) {
  const BlockForm& f = w.form;
  const bool wide = f.scale == BlockScale::wide;
  const int64_t spans = x.in / x.span;
  std::fill_n(totals, x.rows * kStripOuts, 0.f);
  std::vector<float> blocks(static_cast<size_t>(x.rows * kStripOuts), 0.f);
  std::array<float, kChunkCols * kLanes> values;
  std::array<int32_t, kChunkCols * kLanes> levels;
  const uint8_t* first = w.bytes + f.heads_bytes(x.in);
  for (int64_t at = 0; at < 2 * x.in; at += kChunkCols) {
    const int64_t half = at / kChunkCols % 2, c = (at / kChunkCols - half) / 2 * kChunkCols;
    const uint8_t* codes = first + c / kChunkCols * f.chunk_bytes() + half * kLineBytes;
    chunk_levels(f, codes, values.data());
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<int32_t>(values[i]);
    for (int64_t r = 0; r < x.rows; ++r) {
      const int64_t to = r * kStripOuts + half * kLanes;
      const float of_x = x.scales[r * (x.in / kChunkCols) + c / kChunkCols];
      for (int64_t i = 0; i < kChunkCols; i += f.group) {
        const int64_t g = (c + i) / x.span, scale = (half * spans + g) * w.step;
        const int8_t* of_row = x.low + r * x.in + c + i;
        if (wide) {
          hot::add_to_block(levels.data(), of_row, of_x, blocks.data() + to);
          if ((c + kChunkCols) % x.span != 0) continue;  // the block goes on
          hot::add_block(blocks.data() + to, w.scales + scale, totals + to);
        } else {
          hot::add_whole_group(levels.data() + i * kLanes, of_row, f.group, w.scales + scale, of_x, totals + to);
        }
        if (f.minima) hot::add_scaled_minima(w.minima + scale, x.scaled[r * spans + g], totals + to);
      }
    }
  }
}

// A strip with its scales: where they lie if they are wide, else in `room`.
Int8Strip strip_of(const BlockView& w, int64_t s, bool plain, float* room) {
  const BlockForm& f = *w.form;
  const uint8_t* bytes = w.strip(s);
  if (f.scale == BlockScale::wide) {
    const auto* heads = reinterpret_cast<const float*>(bytes);
    return {.form = f, .bytes = bytes, .scales = heads, .minima = heads + kLanes, .step = (f.minima ? 2 : 1) * kLanes};
  }
  float* minima = room + w.in / f.group * kStripOuts;
  (plain ? strip_scales : fast_scales())(f, w.in, bytes, room, minima);
  return {.form = f, .bytes = bytes, .scales = room, .minima = minima};
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
  const CodedRows codes = coded(x, f, loops);
  const int64_t grain = std::max<int64_t>(1, rows > kRowsByOutputs ? 1 : kBytesAtOnce / w.strips.cols());
  parallel_for(strips, grain, [&](int64_t begin, int64_t end) {
    float* room = scratch(Scratch::w, 2 * each + 16);
    float* scales = room + (64 - reinterpret_cast<uintptr_t>(room) % 64) % 64 / sizeof(float);
    float* sums = scratch(Scratch::y, std::min(rows, kRowsAtATime) * kStripOuts);
    for (int64_t s = begin; s < end; ++s) {
      const Int8Strip strip = strip_of(w, s, plain, scales);
      const int64_t o = s * kStripOuts, past = std::min(w.out, o + kStripOuts);
      for (int64_t first = 0; first < rows; first += kRowsAtATime) {
        CodedRows part = codes.from(first);
        part.rows = std::min(kRowsAtATime, rows - first);
        multiply(strip, part, sums);
        store_rows(sums, kStripOuts, part.rows, bias, o, past, y, first);
      }
    }
  });
}

void block_int8_gemm(Exec& ex, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y) {
  block_int8_gemm(ex, x, w, bias, y, int8_loops());
}

}  // namespace fewbit::cpu
