#include "src/quant/row_share.h"

#include <numeric>

#include "src/ranks/exchange.h"

namespace fewbit {

RowShare::RowShare(const Exec& ex, const Ranks& ranks, int64_t out, const QuantSpec& spec) : on_cuda_(ex.on_cuda()) {
  if (ranks.alone() || spec.out_group >= out) return;
  const int64_t unit = std::lcm(kRowUnit, spec.out_group);
  if (out < unit * ranks.size()) return;
  ranks_ = &ranks;
  begin_ = even_bands(out, ranks.size(), unit);
}

const RowShare& RowShare::none() {
  static const RowShare alone;
  return alone;
}

ConstTensorView RowShare::mine(ConstTensorView whole) const {
  if (alone()) return whole;
  const auto rank = static_cast<size_t>(ranks_->rank());
  return whole.row_range(begin_[rank], begin_[rank + 1]);
}

Tensor RowShare::whole(Exec& ex, Tensor band, int64_t unit) const {
  if (alone()) return band;
  std::vector<int64_t> begin;
  begin.reserve(begin_.size());
  for (const int64_t b : begin_) begin.push_back((b + unit - 1) / unit);
  Tensor all = ex.alloc(band.dtype(), {begin.back(), band.cols()});
  const auto rank = static_cast<size_t>(ranks_->rank());
  ex.copy(band, all.view().row_range(begin[rank], begin[rank + 1]));
  ranks_->all_gather_rows(ex, all, begin);
  return all;
}

Tensor RowShare::whole(Tensor band, int64_t unit) const {
  Exec host = Exec::cpu();
  return whole(host, std::move(band), unit);
}

void RowShare::gather(QuantizedLinear& q) const {
  if (alone()) return;
  q.codes = whole(std::move(q.codes));
  q.scales = whole(std::move(q.scales), q.spec.out_group);
  if (q.zeros) q.zeros = whole(std::move(*q.zeros));
}

PanelShare RowShare::panels() const {
  if (alone()) return {};
  if (on_cuda_)
    return {.rank = ranks_->rank(),
            .size = ranks_->size(),
            .gather_rows = [this](Exec& ex, TensorView all, std::span<const int64_t> begin) {
              ranks_->all_gather_rows(ex, all, begin);
            }};
  return {.rank = ranks_->rank(), .size = ranks_->size(), .gather = [this](void* all, std::span<const int64_t> begin) {
            Exec host = Exec::cpu();
            ranks_->all_gather_rows(host, TensorView{all, DType::u8, {begin.back(), 1}, {}}, begin);
          }};
}

bool RowShare::everywhere(bool here) const { return alone() ? here : true_for_all(*ranks_, here); }

int64_t RowShare::sum(int64_t here) const { return alone() ? here : sum_of_all(*ranks_, {here}).front(); }

double RowShare::sum_of(Exec& ex, ConstTensorView band) const {
  Tensor all;
  if (!alone()) {
    const auto rank = static_cast<size_t>(ranks_->rank());
    all = ex.alloc(DType::f64, {begin_.back()});
    ex.copy(band, all.view().row_range(begin_[rank], begin_[rank + 1]));
    ranks_->all_gather_rows(ex, all, begin_);
  }
  const Tensor host = ex.to_host(all.empty() ? band : all);
  return std::accumulate(host.as<double>(), host.as<double>() + host.numel(), 0.0);
}

}  // namespace fewbit
