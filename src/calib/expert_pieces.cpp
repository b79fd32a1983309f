#include "src/calib/expert_pieces.h"

#include <algorithm>
#include <utility>

namespace fewbit {

ExpertPieces::ExpertPieces(Exec& ex, std::vector<int> experts, Take take)
    : ex_(ex), experts_(std::move(experts)), take_(std::move(take)), kept_(experts_.size(), 0) {}

// Rows of the chunk to where they wait; run k is of the expert number of[k] of experts_.
void ExpertPieces::place(const Routing& routing, const std::vector<size_t>& of, const std::vector<PlacedRows>& runs,
                         ConstTensorView x, Tensor& to) const {
  if (!x.data) return;
  if (to.empty()) to = ex_.alloc(x.dtype, {std::ssize(experts_) * kExpertPiece, x.cols()});
  if (routing.input_weights.empty()) return place_rows(ex_, x, routing.rows, runs, to);
  for (size_t k = 0; k < runs.size(); ++k) {
    const int expert = experts_[of[k]];
    const int64_t from = runs[k].from - routing.begin[static_cast<size_t>(expert)];
    const Tensor weighed = expert_rows(ex_, routing, expert, x);
    ex_.copy(weighed.view().row_range(from, from + runs[k].count),
             to.view().row_range(runs[k].to, runs[k].to + runs[k].count));
  }
}

void ExpertPieces::give(size_t i) {
  const int64_t begin = static_cast<int64_t>(i) * kExpertPiece, end = begin + std::exchange(kept_[i], 0);
  const auto rows = [&](const Tensor& t) {
    return t ? ConstTensorView(t.view().row_range(begin, end)) : ConstTensorView{};
  };
  take_(experts_[i], rows(x_), rows(x_full_));
}

void ExpertPieces::add(const Routing& routing, ConstTensorView x, ConstTensorView x_full) {
  std::vector<int64_t> done(experts_.size(), 0);
  for (;;) {
    std::vector<size_t> of;
    std::vector<PlacedRows> runs;
    for (size_t i = 0; i < experts_.size(); ++i) {
      const int64_t count = std::min(routing.tokens(experts_[i]) - done[i], kExpertPiece - kept_[i]);
      if (count == 0) continue;
      of.push_back(i);
      runs.push_back({.from = routing.begin[static_cast<size_t>(experts_[i])] + done[i],
                      .to = static_cast<int64_t>(i) * kExpertPiece + kept_[i],
                      .count = count});
    }
    if (runs.empty()) return;
    place(routing, of, runs, x, x_);
    place(routing, of, runs, x_full, x_full_);
    for (size_t k = 0; k < of.size(); ++k) {
      done[of[k]] += runs[k].count;
      kept_[of[k]] += runs[k].count;
      if (kept_[of[k]] == kExpertPiece) give(of[k]);
    }
  }
}

void ExpertPieces::finish() {
  for (size_t i = 0; i < experts_.size(); ++i)
    if (kept_[i] > 0) give(i);
}

}  // namespace fewbit
