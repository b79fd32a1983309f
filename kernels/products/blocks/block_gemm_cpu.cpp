// Strip by strip: its scales are made first, then rows of x meet codes that become levels on the way. plain_strip() is
// the readable truth, and what runs on other machines.
#include "kernels/products/blocks/block_gemm.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/products/blocks/block_dot.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {

// The sum of each group of x, in eight partial sums and a tree.
FEWBIT_HOT void group_sums(const float* x, int64_t in, int64_t group, float* sums) {
  for (int64_t c = 0; c < in; c += group) {
    float part[8] = {};
    for (int64_t i = c; i < c + group; i += 8)
      for (int64_t l = 0; l < 8; ++l) part[l] += x[i + l];
    *sums++ = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
  }
}

// total[lane] += scale[lane] * sum over the group's columns of levels[column][lane] * x[column]
FEWBIT_HOT void add_group(const float* levels, const float* x, int64_t group, const float* scale, float* total) {
  float sum[kLanes] = {};
  for (int64_t i = 0; i < group; ++i)
    for (int64_t l = 0; l < kLanes; ++l) sum[l] += levels[i * kLanes + l] * x[i];
  for (int64_t l = 0; l < kLanes; ++l) total[l] += sum[l] * scale[l];
}

FEWBIT_HOT void add_minima(const float* minima, float sum, float* total) {
  for (int64_t l = 0; l < kLanes; ++l) total[l] += minima[l] * sum;
}

}  // namespace hot

namespace {

constexpr int64_t kRowsInCache = 480;  // of a prompt, whose sums with a strip are kept; a multiple of a tile's rows

constexpr int64_t kShortRows = 8;  // with more a strip is work enough for a thread to take

struct Product {
  ConstTensorView x, bias;
  const BlockView& w;
  TensorView y;
  const float* row_scales;
  int64_t groups;
  // [rows][groups] where there are minima; of the loop in AVX2 always
  const float* group_sums = nullptr;

  // Sums of a strip, [rows][32], to rows of y from `row` on.
  void store(float* sums, int64_t strip, int64_t row, int64_t rows) const {
    const int64_t o = strip * kStripOuts, end = std::min(w.out, o + kStripOuts);
    for (int64_t i = 0; row_scales && i < rows * kStripOuts; ++i) sums[i] *= row_scales[row + i / kStripOuts];
    store_rows(sums, kStripOuts, rows, bias, o, end, y, row);
  }
};

// Room of this thread: the scales and minima of a strip, then `more` floats, at multiples of 64 bytes.
struct StripRoom {
  float *scales, *minima, *more;
  StripRoom(const Product& p, int64_t more_floats) {
    const int64_t each = p.groups * kStripOuts;
    float* room = scratch(Scratch::w, 2 * each + more_floats + 16);
    scales = room + (64 - reinterpret_cast<uintptr_t>(room) % 64) % 64 / sizeof(float);
    minima = scales + each;
    more = minima + each;
  }
};

// Any number of rows, 32 columns at a time; x in f32. The readable truth.
void plain_strip(const Product& p, const float* x, int64_t strip) {
  const BlockForm& f = *p.w.form;
  const int64_t rows = p.x.rows(), in = p.w.in;
  const StripRoom room(p, kChunkCols * kLanes);
  strip_scales(f, in, p.w.strip(strip), room.scales, room.minima);
  const int64_t part = std::min<int64_t>(f.group, kChunkCols);
  float* totals = scratch(Scratch::y, rows * kStripOuts);
  std::fill_n(totals, rows * kStripOuts, 0.f);
  const uint8_t* first = p.w.strip(strip) + f.heads_bytes(in);
  for (int64_t at = 0; at < 2 * in; at += kChunkCols) {
    const int64_t half = at / kChunkCols % 2, c = (at / kChunkCols - half) / 2 * kChunkCols;
    chunk_levels(f, first + c / kChunkCols * f.chunk_bytes() + half * kLineBytes, room.more);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < kChunkCols; i += part) {
        const int64_t g = (c + i) / f.group, scale = (half * p.groups + g) * kLanes;
        float* total = totals + r * kStripOuts + half * kLanes;
        hot::add_group(room.more + i * kLanes, x + r * in + c + i, part, room.scales + scale, total);
        if (f.minima && (c + i) % f.group == 0)
          hot::add_minima(room.minima + scale, p.group_sums[r * p.groups + g], total);
      }
  }
  p.store(totals, strip, 0, rows);
}

// A strip for the vector loops, its scales in scratch memory of this thread, or where they lie if a block is a group.
StripRef strip_of(const Product& p, int64_t strip) {
  const BlockForm& f = *p.w.form;
  const uint8_t* bytes = p.w.strip(strip);
  if (f.scale == BlockScale::wide && f.group == f.columns) {
    const auto* heads = reinterpret_cast<const float*>(bytes);
    const int64_t step = f.minima ? 2 * kLanes : kLanes;
    return {.form = f, .bytes = bytes, .scales = heads, .minima = heads + kLanes, .step = step};
  }
  const StripRoom room(p, 0);
  fast_scales()(f, p.w.in, bytes, room.scales, room.minima);
  return {.form = f, .bytes = bytes, .scales = room.scales, .minima = room.minima};
}

// The same by the loop in AVX2; x as that reads it.
void wide_strip(const Product& p, const float* x, int64_t strip) {
  const int64_t rows = p.x.rows(), in = p.w.in;
  const StripRef ref = strip_of(p, strip);
  float* sums = scratch(Scratch::y, std::min(rows, kRowsInCache) * kStripOuts);
  for (int64_t first = 0; first < rows; first += kRowsInCache) {
    const int64_t count = std::min(kRowsInCache, rows - first);
    const WideRows part{.values = x + first * kChunkCols,
                        .rows = count,
                        .all = rows,
                        .in = in,
                        .sums = p.group_sums + first * p.groups};
    wide_dots(ref, part, sums);
    p.store(sums, strip, first, count);
  }
}

// Rows of x, f32 [rows, in], as wide_dots() reads them.
void pack_chunks(const BlockForm& f, const float* x, int64_t rows, int64_t in, float* to) {
  float factors[kChunkCols];
  for (int64_t c = 0; c < kChunkCols; ++c) factors[c] = wide_factor(f, c);
  constexpr int64_t kAtOnce = 512;  // parts of rows, of 32 columns each
  parallel_for(in / kChunkCols, std::max<int64_t>(1, kAtOnce / std::max<int64_t>(1, rows)),
               [&](int64_t begin, int64_t end) {
                 float* next = to + begin * rows * kChunkCols;
                 for (int64_t at = begin * kChunkCols; at < end * kChunkCols; at += kChunkCols)
                   for (int64_t r = 0; r < rows; ++r)
                     for (int64_t c = 0; c < kChunkCols; ++c) *next++ = x[r * in + at + c] * factors[c];
               });
}

// All rows of x; `xs` as packed() makes them.
void fast_strip(const Product& p, const uint32_t* xs, int64_t strip) {
  const int64_t rows = p.x.rows(), in = p.w.in;
  const StripRef ref = strip_of(p, strip);
  float* sums = scratch(Scratch::y, std::min(rows, kRowsInCache) * kStripOuts);
  for (int64_t first = 0; first < rows; first += kRowsInCache) {
    const int64_t count = std::min(kRowsInCache, rows - first);
    const PackedRows part{.pairs = xs + first * (in / 2),
                          .rows = count,
                          .in = in,
                          .sums = p.group_sums ? p.group_sums + first * p.groups : nullptr};
    code_dots(ref, part, sums);
    p.store(sums, strip, first, count);
  }
}

// x as the loop reads it, kRowsInCache rows at a time: where it lies, or in `room`.
const uint32_t* packed(ConstTensorView x, const BlockForm& f, uint32_t* room) {
  if (x.rows() == 1) return static_cast<const uint32_t*>(x.data);
  constexpr int64_t kTilesAtOnce = 8;
  for (int64_t first = 0; first < x.rows(); first += kRowsInCache) {
    const int64_t rows = std::min(kRowsInCache, x.rows() - first);
    parallel_for(row_tiles(f, rows), kTilesAtOnce, [&](int64_t begin, int64_t end) {
      pack_rows(f, x, first, rows, begin, end, room + first * (x.cols() / 2));
    });
  }
  return room;
}

}  // namespace

BlockLoops block_loops() {
  return has_block_dots() ? BlockLoops::avx512 : has_wide_dots() ? BlockLoops::avx2 : BlockLoops::plain;
}

void block_gemm(Exec&, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y, BlockLoops loops,
                const float* row_scales) {
  const BlockForm& f = *w.form;
  const int64_t rows = x.rows(), strips = w.strips.rows();
  FEWBIT_ASSERT(x.dtype == DType::bf16 && x.cols() == w.in && y.rows() == rows && y.cols() == w.out);
  FEWBIT_ASSERT(w.in % f.columns == 0 && w.strips.cols() == f.strip_bytes(w.in) && strips * kStripOuts >= w.out);
  FEWBIT_ASSERT(!bias.data || (bias.numel() == w.out && bias.dtype == x.dtype));
  FEWBIT_ASSERT(loops <= block_loops() && takes(loops, f));
  const bool pairs = loops == BlockLoops::avx512, summed = f.minima || loops == BlockLoops::avx2;
  Product p{.x = x, .bias = bias, .w = w, .y = y, .row_scales = row_scales, .groups = w.in / f.group};
  const int64_t wide = !pairs || summed ? rows * w.in : 0, sums = summed ? rows * p.groups : 0;
  const int64_t packed_floats = pairs ? rows * w.in / 2 : loops == BlockLoops::avx2 ? rows * w.in : 0;
  float* xs = scratch(Scratch::x, wide + sums + packed_floats);  // of this thread; others only read it
  if (wide > 0) widen_rows(x.dtype, x.data, rows, w.in, w.in, xs);
  if (summed) {
    p.group_sums = xs + wide;
    for (int64_t r = 0; r < rows; ++r) hot::group_sums(xs + r * w.in, w.in, f.group, xs + wide + r * p.groups);
  }
  const int64_t grain = rows <= kShortRows ? std::max<int64_t>(1, kBytesAtOnce / w.strips.cols()) : 1;
  const auto strip_by_strip = [&](const auto& multiply, const auto* as_read) {
    parallel_for(strips, loops == BlockLoops::plain ? 1 : grain, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) multiply(p, as_read, s);
    });
  };
  if (loops == BlockLoops::plain) return strip_by_strip(plain_strip, xs);
  if (pairs) return strip_by_strip(fast_strip, packed(x, f, reinterpret_cast<uint32_t*>(xs + wide + sums)));
  float* chunks = xs + wide + sums;
  pack_chunks(f, xs, rows, w.in, chunks);
  strip_by_strip(wide_strip, chunks);
}

void block_gemm(Exec& ex, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y) {
  block_gemm(ex, x, w, bias, y, takes(block_loops(), *w.form) ? block_loops() : BlockLoops::plain);
}

void block_rows(Exec&, ConstTensorView ids, const BlockView& w, float scale, TensorView rows) {
  FEWBIT_ASSERT(ids.dtype == DType::i32 && rows.rows() == ids.numel() && rows.cols() == w.in);
  parallel_for(ids.numel(), 1, [&](int64_t i, int64_t) {
    float* values = scratch(Scratch::y, w.in);
    block_row(w, ids.as<int32_t>()[i], values);
    for (int64_t c = 0; c < w.in; ++c) values[c] *= scale;
    store_row(values, {}, 0, w.in, rows, i);
  });
}

}  // namespace fewbit::cpu
