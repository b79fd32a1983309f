#include "src/eval/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/statistics/divergence.h"
#include "kernels/statistics/nll.h"
#include "src/core/stopwatch.h"
#include "src/core/text/with_error.h"

namespace fewbit {
namespace {

// Per-token results of all windows, on the host.
struct Tokens {
  std::vector<double> kl, base_nll, nll;
  std::vector<int32_t> base_top, model_top;
  int64_t top1 = 0, top5 = 0;
};

std::vector<int32_t> likeliest(Exec& ex, ConstTensorView logits) {
  const Tensor ids = ex.alloc(DType::i32, {logits.rows()});
  argmax(ex, logits, ids);
  const Tensor host = ex.to_host(ids);
  return {host.as<int32_t>(), host.as<int32_t>() + host.numel()};
}

std::vector<double> losses(Exec& ex, ConstTensorView logits, ConstTensorView targets) {
  const Tensor out = ex.alloc(DType::f32, {logits.rows()});
  nll(ex, logits, targets, 0, out);  // the logits have the model's soft cap already
  const Tensor host = ex.to_host(out);
  return {host.as<float>(), host.as<float>() + host.numel()};
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void add_rows(Exec& ex, ConstTensorView base, ConstTensorView model, std::span<const int32_t> targets, Tokens& out) {
  const int64_t rows = base.rows();
  const Tensor kl = ex.alloc(DType::f64, {rows}), top1 = ex.alloc(DType::i32, {rows}),
               top5 = ex.alloc(DType::i32, {rows});
  fewbit::divergence(ex, base, model, {.kl = kl, .top1 = top1, .top5 = top5});
  const Tensor ids = ex.to_device(Tensor::host_from<int32_t>(DType::i32, {rows}, targets));
  append(out.base_nll, losses(ex, base, ids));
  append(out.nll, losses(ex, model, ids));
  append(out.base_top, likeliest(ex, base));
  append(out.model_top, likeliest(ex, model));
  const Tensor hk = ex.to_host(kl), h1 = ex.to_host(top1), h5 = ex.to_host(top5);
  out.kl.insert(out.kl.end(), hk.as<double>(), hk.as<double>() + rows);
  out.top1 += std::accumulate(h1.as<int32_t>(), h1.as<int32_t>() + rows, int64_t{0});
  out.top5 += std::accumulate(h5.as<int32_t>(), h5.as<int32_t>() + rows, int64_t{0});
}

double percentile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<size_t>(std::max(0.0, std::ceil(p * static_cast<double>(sorted.size())) - 1))];
}

struct MeanAndError {
  double mean = 0, stderr_ = 0;
};
// The mean over tokens, and its standard error by the means of the windows.
MeanAndError by_windows(const std::vector<double>& values, const ScoredWindows& w) {
  MeanAndError r;
  r.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double squares = 0;
  auto at = values.begin();
  for (int64_t i = 0; i < w.windows.count; ++i) {
    const int64_t n = w.scored_in(i);
    const double d = std::accumulate(at, at + n, 0.0) / static_cast<double>(n) - r.mean;
    squares += d * d;
    at += n;
  }
  const auto n = static_cast<double>(w.windows.count);
  r.stderr_ = n > 1 ? std::sqrt(squares / (n - 1) / n) : kNoError;
  return r;
}

void summarise_kl(const Tokens& t, const ScoredWindows& w, DivergenceResult& r) {
  const MeanAndError m = by_windows(t.kl, w);
  std::vector<double> sorted = t.kl;
  std::sort(sorted.begin(), sorted.end());
  r.kl = {m.mean,       m.stderr_, percentile(sorted, 0.50), percentile(sorted, 0.90), percentile(sorted, 0.99),
          sorted.back()};
}

void summarise_shifts(const Tokens& t, DivergenceResult& r) {
  r.shifts.assign(kShiftEdges.size() - 1, 0);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < t.kl.size(); ++i) {
    const double d = std::exp(-t.nll[i]) - std::exp(-t.base_nll[i]);
    sum += d;
    squares += d * d;
    const auto bin = std::upper_bound(kShiftEdges.begin() + 1, kShiftEdges.end() - 1, d) - kShiftEdges.begin() - 1;
    ++r.shifts[static_cast<size_t>(bin)];
  }
  const auto n = static_cast<double>(t.kl.size());
  r.shift_mean = sum / n;
  r.shift_rms = std::sqrt(squares / n);
}

void name_worst(const Tokens& t, const ScoredWindows& w, int64_t count, DivergenceResult& r) {
  std::vector<size_t> order(t.kl.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto n = std::min(order.size(), static_cast<size_t>(count));
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(n), order.end(),
                    [&](size_t a, size_t b) { return t.kl[a] != t.kl[b] ? t.kl[a] > t.kl[b] : a < b; });
  for (size_t k = 0; k < n; ++k) {
    const size_t i = order[k];
    int64_t window = 0, row = static_cast<int64_t>(i);
    while (row >= w.scored_in(window)) row -= w.scored_in(window++);
    const int64_t position = w.first_of(window) + row;
    r.worst.push_back({window, position, w.windows.ids[static_cast<size_t>(window * w.windows.length + position)],
                       t.base_top[i], t.model_top[i], t.kl[i], std::exp(-t.base_nll[i]), std::exp(-t.nll[i])});
  }
}

DivergenceResult summarise(const Tokens& t, const ScoredWindows& w, int64_t worst) {
  DivergenceResult r;
  const auto n = static_cast<double>(t.kl.size());
  const MeanAndError base = by_windows(t.base_nll, w), mine = by_windows(t.nll, w);
  r.base_perplexity = std::exp(base.mean);
  r.base_stderr = r.base_perplexity * base.stderr_;
  r.perplexity = std::exp(mine.mean);
  r.stderr_ = r.perplexity * mine.stderr_;
  std::vector<double> differences(t.nll);
  for (size_t i = 0; i < differences.size(); ++i) differences[i] -= t.base_nll[i];
  const MeanAndError paired = by_windows(differences, w);
  r.ln_ratio = paired.mean;
  r.ln_ratio_stderr = paired.stderr_;
  summarise_kl(t, w, r);
  summarise_shifts(t, r);
  name_worst(t, w, worst, r);
  r.top1 = static_cast<double>(t.top1) / n;
  r.top1_stderr = std::sqrt(r.top1 * (1 - r.top1) / n);
  r.top5 = static_cast<double>(t.top5) / n / 5;
  r.tokens = static_cast<int64_t>(t.kl.size());
  r.windows = w.windows.count;
  return r;
}

}  // namespace

DivergenceResult divergence(Exec& ex, const LogitSource& base, const LogitSource& model, const ScoredWindows& w,
                            const DivergenceOptions& o) {
  if (model.vocab != base.vocab)
    fail(ErrorKind::usage,
         fmt::format("the models have different vocabularies ({} and {} entries) and cannot be compared", base.vocab,
                     model.vocab));
  const Stopwatch watch;
  const Windows& all = w.windows;
  const int64_t limit = std::max<int64_t>(1, o.batch_tokens / all.length), chunk = logit_rows_at_once(ex, base.vocab);
  Tokens tokens;
  for (int64_t begin = 0; begin < all.count;) {
    const int64_t end = w.run_end(begin, limit), rows = (end - begin) * w.scored_in(begin);
    const std::vector<int32_t> targets =
        targets_of(std::span(all.ids).subspan(static_cast<size_t>(begin * all.length),
                                              static_cast<size_t>((end - begin) * all.length)),
                   end - begin, w.first_of(begin));
    const BatchLogits from_base = base.windows(begin, end), from_model = model.windows(begin, end);
    for (int64_t r = 0; r < rows; r += chunk) {
      const int64_t stop = std::min(rows, r + chunk);
      add_rows(ex, from_base(r, stop), from_model(r, stop),
               std::span(targets).subspan(static_cast<size_t>(r), static_cast<size_t>(stop - r)), tokens);
    }
    begin = end;
    if (o.progress) o.progress(begin, all.count);
  }
  DivergenceResult result = summarise(tokens, w, o.worst);
  result.seconds = watch.seconds();
  return result;
}

}  // namespace fewbit
