#include "src/quant/methods/coupled_rows.h"

#include <algorithm>
#include <numeric>

#include "kernels/exec/upload.h"
#include "kernels/model/add.h"
#include "kernels/products/gemm.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/matrix_edit.h"

namespace fewbit {
namespace {

// What is off the diagonal is a noisy sum of few tokens, and is taken for so much of itself; the diagonal weighs no row
// against itself. On a small model 0.7 and 0.9 were alike with 131,072 tokens, 0.7 better with a quarter of them.
constexpr float kTrusted = 0.7f;
constexpr float kDamp = 0.01f;  // of the mean of the diagonal, on it

// Rows of a set, step by step: those of step k are k, k + steps, …
std::vector<int32_t> order_of(int64_t rows, int64_t steps) {
  std::vector<int32_t> order;
  for (int64_t k = 0; k < steps; ++k)
    for (int64_t r = k; r < rows; r += steps) order.push_back(static_cast<int32_t>(r));
  return order;
}

// inv(R)^T of an upper triangular matrix on the host, in f64: lower triangular.
Tensor inverse_transposed(Exec& ex, ConstTensorView strip, int64_t column) {
  const int64_t n = strip.rows(), ld = strip.cols();
  const float* r = strip.as<float>() + column;
  std::vector<double> inverse(static_cast<size_t>(n * n), 0.0);  // column by column of inv(R)
  for (int64_t c = 0; c < n; ++c)
    for (int64_t i = c; i >= 0; --i) {
      double sum = i == c ? 1 : 0;
      for (int64_t k = i + 1; k <= c; ++k)
        sum -= static_cast<double>(r[i * ld + k]) * inverse[static_cast<size_t>(c * n + k)];
      inverse[static_cast<size_t>(c * n + i)] = sum / r[i * ld + i];
    }
  const Tensor host = Tensor::host(DType::f32, {n, n});
  std::transform(inverse.begin(), inverse.end(), host.as<float>(), [](double v) { return static_cast<float>(v); });
  return ex.to_device(host);  // row c holds column c of inv(R)
}

// The set's matrix in its order, with less of what is off the diagonal, and factored. False where it cannot be.
bool factor_set(Exec& ex, Tensor& h, const std::vector<int32_t>& order) {
  const int64_t n = h.rows();
  const Tensor at = upload(ex, order), diag = ex.alloc(DType::f32, {n});
  Tensor r = ex.alloc(DType::f32, {n, n});
  permute(ex, h, at, at, r);
  diagonal(ex, r, diag);
  const Tensor host = ex.to_host(diag);
  const double mean = std::accumulate(host.as<float>(), host.as<float>() + n, 0.0) / static_cast<double>(n);
  if (!(mean > 0)) return false;  // NaN too
  scale_rows(ex, upload(ex, std::vector<float>(static_cast<size_t>(n), kTrusted)), r);
  set_diagonal(ex, diag, r);
  const float damp = kDamp * static_cast<float>(mean);
  return factorize(ex, r, damp, Precision::f64, h).ok();
}

}  // namespace

std::optional<CoupledRows> CoupledRows::of(Exec& ex, OutputCurvature& curvature, int64_t out) {
  CoupledRows all;
  const int64_t sets = OutputCurvature::sets_of(out);
  const int64_t steps = std::min(kCoupledSteps, OutputCurvature::rows_of(out, sets - 1));
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(steps));
  all.steps_.resize(static_cast<size_t>(steps));
  for (int64_t s = 0; s < sets; ++s) {
    Tensor& h = curvature.sets[static_cast<size_t>(s)];
    const std::vector<int32_t> order = order_of(h.rows(), steps);
    if (!factor_set(ex, h, order)) return std::nullopt;
    int64_t begin = 0;
    for (int64_t k = 0; k < steps; ++k) {
      const int64_t end = begin + (h.rows() - k + steps - 1) / steps;
      const Tensor strip = ex.to_host(h.view().row_range(begin, end));
      all.steps_[static_cast<size_t>(k)].parts.push_back(
          {.set = s, .begin = begin, .end = end, .inverse = inverse_transposed(ex, strip, begin)});
      for (int64_t i = begin; i < end; ++i)
        rows[static_cast<size_t>(k)].push_back(static_cast<int32_t>(order[static_cast<size_t>(i)] * sets + s));
      begin = end;
    }
    all.factors_.push_back(std::move(h));
  }
  std::vector<int32_t> place(static_cast<size_t>(out));
  int32_t at = 0;
  for (size_t k = 0; k < rows.size(); ++k) {
    all.steps_[k].rows = upload(ex, rows[k]);
    for (const int32_t r : rows[k]) place[static_cast<size_t>(r)] = at++;
  }
  all.place_ = upload(ex, place);
  return all;
}

bool CoupledRows::walk(Exec& ex, ConstTensorView target, const Code& code) const {
  const int64_t in = target.cols();
  std::vector<Tensor> errors;  // by set, in its order: target less value, of the rows so far
  errors.reserve(factors_.size());
  for (const Tensor& r : factors_) errors.push_back(ex.alloc(DType::f32, {r.rows(), in}));
  for (const Step& step : steps_) {
    const int64_t some = step.rows.numel();
    const Tensor own = ex.alloc(DType::f32, {some, in});
    permute(ex, target, step.rows, {}, own);
    const Tensor values = ex.alloc(DType::f32, {some, in});
    ex.copy(own, values);
    int64_t at = 0;
    for (const Part& p : step.parts) {
      const int64_t n = p.end - p.begin;
      if (p.begin > 0) {
        const Tensor felt = ex.alloc(DType::f32, {n, in});
        const Mat<const float> before =
            mat<float>(factors_[static_cast<size_t>(p.set)]).block(0, p.begin, p.begin, p.end);
        matmul(ex, {.a = before,
                    .b = mat<float>(errors[static_cast<size_t>(p.set)].view().row_range(0, p.begin)),
                    .c = mat<float>(felt),
                    .ta = Trans::yes});
        matmul(ex, {.a = mat<float>(p.inverse),
                    .b = mat<float>(felt),
                    .c = mat<float>(values.view().row_range(at, at + n)),
                    .beta = 1});
      }
      at += n;
    }
    if (!code(values)) return false;
    add(ex, values, own, -1);
    at = 0;
    for (const Part& p : step.parts) {
      const int64_t n = p.end - p.begin;
      ex.copy(own.view().row_range(at, at + n), errors[static_cast<size_t>(p.set)].view().row_range(p.begin, p.end));
      at += n;
    }
  }
  return true;
}

int64_t coupled_bytes(int64_t out, int64_t in) {
  const int64_t n = OutputCurvature::rows_of(out, 0), some = (out + kCoupledSteps - 1) / kCoupledSteps;
  // Factoring a set, in f64; or errors, and of a step its rows in three places.
  return std::max(12 * n * n, 4 * out * in + 12 * some * in + 4 * n * n / kCoupledSteps);
}

}  // namespace fewbit
