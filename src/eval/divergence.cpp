#include "src/eval/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "kernels/divergence.h"
#include "kernels/nll.h"

namespace fewbit {
namespace {

// Logits of both models are held for this many bytes at a time.
constexpr int64_t kLogitBytes = int64_t{256} << 20;

// Per-token results of all windows, on the host.
struct Tokens {
  std::vector<double> kl, base_nll, nll;
  int64_t top1 = 0, top5 = 0;
};

// Adds rows [begin, end) of two hidden-state matrices; `targets` holds the next token of each row, -1 at a
// window's end.
void add_rows(Exec& ex, Runner& base, Runner& model, ConstTensorView xb, ConstTensorView xm,
              std::span<const int32_t> targets, Tokens& out) {
  const int64_t rows = xb.rows();
  const Tensor lb = base.logits(xb), lm = model.logits(xm);
  const Tensor kl = ex.alloc(DType::f64, {rows}), top1 = ex.alloc(DType::i32, {rows}),
               top5 = ex.alloc(DType::i32, {rows});
  fewbit::divergence(ex, lb, lm, {.kl = kl, .top1 = top1, .top5 = top5});
  const Tensor ids = ex.to_device(Tensor::host_from<int32_t>(DType::i32, {rows}, targets));
  const Tensor nb = ex.alloc(DType::f32, {rows}), nm = ex.alloc(DType::f32, {rows});
  // The logits have the model's soft cap already.
  nll(ex, lb, ids, 0, nb);
  nll(ex, lm, ids, 0, nm);
  const Tensor hk = ex.to_host(kl), h1 = ex.to_host(top1), h5 = ex.to_host(top5), hb = ex.to_host(nb),
               hm = ex.to_host(nm);
  for (int64_t r = 0; r < rows; ++r) {
    if (targets[static_cast<size_t>(r)] < 0) continue;
    out.kl.push_back(hk.as<double>()[r]);
    out.base_nll.push_back(hb.as<float>()[r]);
    out.nll.push_back(hm.as<float>()[r]);
    out.top1 += h1.as<int32_t>()[r];
    out.top5 += h5.as<int32_t>()[r];
  }
}

double percentile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<size_t>(std::max(0.0, std::ceil(p * static_cast<double>(sorted.size())) - 1))];
}

DivergenceResult summarise(Tokens& t, const Windows& w) {
  DivergenceResult r;
  const auto n = static_cast<double>(t.kl.size());
  const int64_t per_window = w.length - 1;
  const double base = std::accumulate(t.base_nll.begin(), t.base_nll.end(), 0.0) / n;
  const double mine = std::accumulate(t.nll.begin(), t.nll.end(), 0.0) / n;
  r.base_perplexity = std::exp(base);
  r.perplexity = std::exp(mine);
  r.ln_ratio = mine - base;
  double squares = 0;
  for (int64_t i = 0; i < w.count; ++i) {
    double mean = 0;
    for (int64_t j = i * per_window; j < (i + 1) * per_window; ++j)
      mean += t.nll[static_cast<size_t>(j)] - t.base_nll[static_cast<size_t>(j)];
    const double d = mean / static_cast<double>(per_window) - r.ln_ratio;
    squares += d * d;
  }
  if (w.count > 1)
    r.ln_ratio_stderr = std::sqrt(squares / static_cast<double>(w.count - 1) / static_cast<double>(w.count));
  r.kl.mean = std::accumulate(t.kl.begin(), t.kl.end(), 0.0) / n;
  std::sort(t.kl.begin(), t.kl.end());
  r.kl.p50 = percentile(t.kl, 0.50), r.kl.p90 = percentile(t.kl, 0.90), r.kl.p99 = percentile(t.kl, 0.99),
  r.kl.max = t.kl.back();
  r.top1 = static_cast<double>(t.top1) / n;
  r.top5 = static_cast<double>(t.top5) / n / 5;
  r.tokens = static_cast<int64_t>(t.kl.size());
  r.windows = w.count;
  return r;
}

}  // namespace

DivergenceResult divergence(Exec& ex, Runner& base, Runner& model, const Windows& w, int64_t batch_tokens,
                            const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t vocab = base.spec().vocab;
  if (model.spec().vocab != vocab)
    fail(ErrorKind::usage,
         fmt::format("the models have different vocabularies ({} and {} entries) and cannot be compared",
                     vocab, model.spec().vocab));
  const auto start = std::chrono::steady_clock::now();
  const int64_t batch = std::max<int64_t>(1, batch_tokens / w.length);
  const int64_t rows_at_once = std::max<int64_t>(1, kLogitBytes / (2 * vocab * 4));
  Tokens tokens;
  for (int64_t begin = 0; begin < w.count; begin += batch) {
    const int64_t end = std::min(w.count, begin + batch), rows = (end - begin) * w.length;
    const std::span<const int32_t> ids(w.ids.data() + begin * w.length, static_cast<size_t>(rows));
    std::vector<int32_t> targets(static_cast<size_t>(rows), -1);
    for (int64_t i = 0; i < rows; ++i)
      if ((i + 1) % w.length != 0) targets[static_cast<size_t>(i)] = ids[static_cast<size_t>(i) + 1];
    const Tensor xb = base.hidden(ids, end - begin), xm = model.hidden(ids, end - begin);
    for (int64_t r = 0; r < rows; r += rows_at_once) {
      const int64_t stop = std::min(rows, r + rows_at_once);
      add_rows(ex, base, model, xb.view().row_range(r, stop), xm.view().row_range(r, stop),
               std::span(targets).subspan(static_cast<size_t>(r), static_cast<size_t>(stop - r)), tokens);
    }
    if (progress) progress(end, w.count);
  }
  DivergenceResult result = summarise(tokens, w);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace fewbit
