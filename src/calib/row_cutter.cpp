#include "src/calib/row_cutter.h"

#include <algorithm>

#include "kernels/statistics/gram.h"

namespace fewbit {

RowCutter::RowCutter(Exec& ex, int64_t piece, Take take)
    : ex_(ex), piece_(piece > 0 ? piece : gram_chunk(ex.device().kind)), take_(std::move(take)) {}

void RowCutter::keep(ConstTensorView x, ConstTensorView x_full) {
  const auto copy = [&](ConstTensorView from, Tensor& to) {
    if (!from.data) return;
    if (to.empty()) to = ex_.alloc(from.dtype, {piece_, from.cols()});
    ex_.copy(from, to.view().row_range(kept_, kept_ + from.rows()));
  };
  copy(x, x_);
  copy(x_full, x_full_);
  kept_ += x.rows();
}

void RowCutter::add(ConstTensorView x, ConstTensorView x_full) {
  FEWBIT_ASSERT(!x_full.data || x_full.rows() == x.rows());
  for (int64_t at = 0; at < x.rows();) {
    const int64_t end = std::min(x.rows(), at + piece_ - kept_);
    const auto part = [&](ConstTensorView v) { return v.data ? v.row_range(at, end) : v; };
    if (kept_ == 0 && end - at == piece_)
      take_(part(x), part(x_full));
    else
      keep(part(x), part(x_full));
    if (kept_ == piece_) finish();
    at = end;
  }
}

void RowCutter::finish() {
  if (kept_ == 0) return;
  const int64_t rows = std::exchange(kept_, 0);
  const auto filled = [rows](const Tensor& t) {
    return t ? ConstTensorView(t.view().row_range(0, rows)) : ConstTensorView{};
  };
  take_(filled(x_), filled(x_full_));
}

}  // namespace fewbit
