#include "src/calib/row_cutter.h"

#include <algorithm>

#include "kernels/statistics/gram.h"

namespace fewbit {

RowCutter::RowCutter(Exec& ex, int64_t piece, Take take)
    : ex_(ex), piece_(piece > 0 ? piece : gram_chunk(ex.device().kind)), take_(std::move(take)) {}

void RowCutter::keep(const InputRows& rows) {
  const auto copy = [&](ConstTensorView from, Tensor& to) {
    if (!from.data) return;
    if (to.empty()) to = ex_.alloc(from.dtype, {piece_, from.cols()});
    ex_.copy(from, to.view().row_range(kept_, kept_ + from.rows()));
  };
  copy(rows.x, x_);
  copy(rows.full, full_);
  copy(rows.error, error_);
  kept_ += rows.x.rows();
}

void RowCutter::add(const InputRows& rows) {
  const int64_t count = rows.x.rows();
  FEWBIT_ASSERT(!rows.full.data || rows.full.rows() == count);
  FEWBIT_ASSERT(!rows.error.data || rows.error.rows() == count);
  for (int64_t at = 0; at < count;) {
    const int64_t end = std::min(count, at + piece_ - kept_);
    const auto part = [&](ConstTensorView v) { return v.data ? v.row_range(at, end) : v; };
    const InputRows some{part(rows.x), part(rows.full), part(rows.error)};
    kept_ == 0 && end - at == piece_ ? take_(some) : keep(some);
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
  take_({filled(x_), filled(full_), filled(error_)});
}

}  // namespace fewbit
