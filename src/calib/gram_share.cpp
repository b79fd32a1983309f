#include "src/calib/gram_share.h"

#include <algorithm>

namespace fewbit {

std::vector<int64_t> half_bands(Device::Kind kind, int64_t n, int parts) {
  const int64_t tile = gram_tile(kind), rows = (n + tile - 1) / tile, tiles = rows * (rows + 1) / 2;
  std::vector<int64_t> begin{0};
  int64_t done = 0;
  for (int64_t row = 0; row < rows; ++row) {
    // Above the diagonal the rows grow shorter (the CPU's half), below it longer.
    const int64_t cost = kind == Device::cuda ? row + 1 : rows - row;
    // A row goes to the band in which more than half of it would fall.
    while (static_cast<int>(begin.size()) < parts &&
           (2 * done + cost) * parts > 2 * tiles * static_cast<int64_t>(begin.size()))
      begin.push_back(row * tile);
    done += cost;
  }
  begin.resize(static_cast<size_t>(parts) + 1, n);
  return begin;
}

GramShare::GramShare(Exec& ex, const Ranks& ranks, int64_t in, bool beside, int64_t out)
    : ex_(ex),
      ranks_(ranks),
      lanes_(ex, beside),
      half_(half_bands(ex.device().kind, in, ranks.size())),
      whole_(even_bands(in, ranks.size(), gram_tile(ex.device().kind))),
      errors_(even_bands(out, ranks.size(), gram_tile(ex.device().kind))) {}

RowBand GramShare::mine(const std::vector<int64_t>& begin) const {
  const auto rank = static_cast<size_t>(ranks_.rank());
  return {begin[rank], begin[rank + 1]};
}

void GramShare::add(const InputRows& rows, TensorView g, TensorView d, TensorView e) const {
  lanes_.add(rows.x, rows.full, g, d, mine(half_), mine(whole_));
  if (rows.error.data) cross_gram(ex_, rows.error, rows.x, e, mine(errors_));
}

void GramShare::finish_gram(TensorView g) const {
  ranks_.all_gather_rows(ex_, g, half_);
  fill_gram_half(ex_, g);
}

void GramShare::finish_cross(TensorView d) const { ranks_.all_gather_rows(ex_, d, whole_); }

void GramShare::finish_errors(TensorView e) const { ranks_.all_gather_rows(ex_, e, errors_); }

}  // namespace fewbit
