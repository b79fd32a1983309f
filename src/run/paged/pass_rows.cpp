#include "src/run/paged/pass_rows.h"

#include <algorithm>
#include <bit>

namespace fewbit {
namespace {

constexpr int64_t kFourInts = 4;  // parts begin at multiples of 16 bytes
// Tables of a GPU have room for so many pages, or twice as many …, so that few lengths make a recording each.
constexpr int64_t kLeastBlocks = 64;

int64_t in_fours(int64_t n) { return (n + kFourInts - 1) / kFourInts * kFourInts; }

}  // namespace

PassRows::PassRows(Exec& ex, const PagedCache& cache, int64_t rows, int64_t runs, int64_t longest)
    : ex_(ex), cache_(cache), most_blocks_(pages_for(longest)) {
  const auto groups = static_cast<int64_t>(cache.groups());
  const int64_t ints = 4 * in_fours(rows) + kFourInts * rows + groups * in_fours(runs * most_blocks_);
  host_ = ex.alloc_pinned(DType::i32, {ints});
  if (ex.on_cuda()) device_ = ex.alloc(DType::i32, {ints});
}

int64_t PassRows::blocks_of(const PassSlice& s) const {
  size_t most = 1;
  for (const int sequence : s.sequences)
    for (size_t g = 0; g < cache_.groups(); ++g) most = std::max(most, cache_.table(sequence, g).size());
  const auto blocks = static_cast<int64_t>(most);
  if (!ex_.on_cuda()) return blocks;
  const int64_t wide = std::max(kLeastBlocks, static_cast<int64_t>(std::bit_ceil(most)));
  return std::max(blocks, std::min(most_blocks_, wide));
}

void PassRows::fill_tables(const PassSlice& s, size_t group, int64_t runs, int64_t blocks, int32_t* to) const {
  for (int64_t r = 0; r < runs; ++r, to += blocks) {
    std::span<const int32_t> table{};
    if (r < std::ssize(s.sequences)) table = cache_.table(s.sequences[static_cast<size_t>(r)], group);
    std::ranges::copy(table, to);
    std::fill(to + table.size(), to + blocks, -1);
  }
}

PlacedRows PassRows::place(const PassSlice& s, const Form& form) {
  if (ex_.on_cuda()) ex_.sync();  // until what is in the pinned memory has been read
  const int64_t rows = std::max(form.rows, s.rows()), blocks = blocks_of(s);
  const int64_t runs = s.decodes() ? rows : std::ssize(s.runs);
  int32_t* const base = host_.as<int32_t>();
  const Tensor& seen = ex_.on_cuda() ? device_ : host_;
  int64_t used = 0;
  // The next part, of so many ints.
  const auto part = [&](Shape shape) {
    const int64_t n = shape.numel(), at = used;
    used += in_fours(n);
    FEWBIT_ASSERT(used <= host_.numel());
    return std::pair{base + at, seen.view().row_range(at, at + n).reshaped(shape)};
  };
  const auto padded = [&](const std::vector<int32_t>& v, int64_t n, int32_t with) {
    const auto [to, view] = part({n});
    std::fill(std::ranges::copy(v, to).out, to + n, with);
    return ConstTensorView(view);
  };
  PlacedRows p{.blocks = blocks};
  p.ids = padded(s.ids, rows, 0);
  p.positions = padded(s.positions, rows, 0);
  // Of a step as many as rows, so that what lies behind has one place in all steps of a recording.
  const bool all = s.decodes() || (form.apart && !s.wanted.empty());
  p.wanted = padded(s.wanted, all ? rows : std::ssize(s.wanted), 0);
  PagedRows paged{.runs = s.runs, .positions = p.positions, .splits = form.splits};
  if (ex_.on_cuda()) {
    const RowPlaces places = row_places(s.runs);
    paged.table_of = padded(places.table_of, rows, -1);
    paged.single = form.apart || places.tiles.empty() ? rows : places.single;
    if (const auto tiles = std::ssize(places.tiles); paged.single < rows)
      paged.tiles = padded(places.tiles, tiles, 0).reshaped({tiles / kFourInts, kFourInts});
  }
  for (size_t g = 0; g < cache_.groups(); ++g) {
    const auto [to, view] = part({runs, blocks});
    fill_tables(s, g, runs, blocks, to);
    paged.tables = view;
    p.groups.push_back(paged);
  }
  if (ex_.on_cuda()) ex_.copy(host_.view().row_range(0, used), device_.view().row_range(0, used));
  return p;
}

}  // namespace fewbit
