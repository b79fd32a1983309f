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

// inv(S)^T of a block H_BB = S S^T: strip [n, ld] of H on the host, the block's columns from `column`. Empty where it
// cannot be factored.
Tensor root_of_inverse(Exec& ex, ConstTensorView strip, int64_t column) {
  const int64_t n = strip.rows(), ld = strip.cols();
  const Tensor block = Tensor::host(DType::f32, {n, n});
  for (int64_t i = 0; i < n; ++i) std::copy_n(strip.as<float>() + i * ld + column, n, block.as<float>() + i * n);
  Exec host = Exec::cpu();
  if (!factorize(host, block, 0, Precision::f64, block).ok()) return {};
  return inverse_transposed(ex, block, 0);
}

// The set's matrix in its order, with so much of what is off the diagonal, and its factor. False where it has none.
bool factor_set(Exec& ex, Tensor& h, const std::vector<int32_t>& order, double trusted, Tensor& whole) {
  const int64_t n = h.rows();
  const Tensor at = upload(ex, order), diag = ex.alloc(DType::f32, {n});
  whole = ex.alloc(DType::f32, {n, n});
  permute(ex, h, at, at, whole);
  diagonal(ex, whole, diag);
  const Tensor host = ex.to_host(diag);
  const double mean = std::accumulate(host.as<float>(), host.as<float>() + n, 0.0) / static_cast<double>(n);
  if (!(mean > 0)) return false;  // NaN too
  scale_rows(ex, upload(ex, std::vector<float>(static_cast<size_t>(n), static_cast<float>(trusted))), whole);
  const float damp = kDamp * static_cast<float>(mean);
  for (int64_t i = 0; i < n; ++i) host.as<float>()[i] += damp;
  set_diagonal(ex, ex.to_device(host), whole);
  return factorize(ex, whole, 0, Precision::f64, h).ok();
}

}  // namespace

std::optional<CoupledRows> CoupledRows::of(Exec& ex, OutputCurvature& curvature, int64_t out, bool sweeps) {
  CoupledRows all;
  const int64_t sets = OutputCurvature::sets_of(out);
  const int64_t steps = std::min(kCoupledSteps, OutputCurvature::rows_of(out, sets - 1));
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(steps));
  all.steps_.resize(static_cast<size_t>(steps));
  for (int64_t s = 0; s < sets; ++s) {
    Tensor& h = curvature.sets[static_cast<size_t>(s)];
    Set set;
    const std::vector<int32_t> order = order_of(h.rows(), steps);
    if (!factor_set(ex, h, order, curvature.trusted(), set.whole)) return std::nullopt;
    int64_t begin = 0;
    for (int64_t k = 0; k < steps; ++k) {
      const int64_t end = begin + (h.rows() - k + steps - 1) / steps;
      const auto strip = [&](const Tensor& m) { return ex.to_host(m.view().row_range(begin, end)); };
      all.steps_[static_cast<size_t>(k)].parts.push_back(
          {.set = s,
           .begin = begin,
           .end = end,
           .inverse = inverse_transposed(ex, strip(h), begin),
           .alone = sweeps ? root_of_inverse(ex, strip(set.whole), begin) : Tensor()});
      if (sweeps && all.steps_[static_cast<size_t>(k)].parts.back().alone.empty()) return std::nullopt;
      for (int64_t i = begin; i < end; ++i)
        rows[static_cast<size_t>(k)].push_back(static_cast<int32_t>(order[static_cast<size_t>(i)] * sets + s));
      begin = end;
    }
    set.factor = std::move(h);
    if (!sweeps) set.whole.reset();
    all.sets_.push_back(std::move(set));
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

// In a walk R_BB^-T (R^T E)_B of the rows before; in a sweep H_BB^-1 (H E)_B of all rows but these, which is that of
// all less their own errors.
void CoupledRows::move(Exec& ex, const Part& p, bool sweeps, TensorView target) const {
  const Set& set = sets_[static_cast<size_t>(p.set)];
  const Tensor felt = ex.alloc(DType::f32, target.shape);
  if (sweeps) {
    add(ex, set.errors.view().row_range(p.begin, p.end), target, -1);
    matmul(ex, {.a = mat<float>(set.whole.view().row_range(p.begin, p.end)),
                .b = mat<float>(set.errors),
                .c = mat<float>(felt)});
    const Tensor half = ex.alloc(DType::f32, target.shape);  // inv(H_BB) = inv(S)^T inv(S)
    matmul(ex, {.a = mat<float>(p.alone), .b = mat<float>(felt), .c = mat<float>(half), .ta = Trans::yes});
    return matmul(ex, {.a = mat<float>(p.alone), .b = mat<float>(half), .c = mat<float>(target), .beta = 1});
  }
  if (p.begin == 0) return;
  matmul(ex, {.a = mat<float>(set.factor).block(0, p.begin, p.begin, p.end),
              .b = mat<float>(set.errors.view().row_range(0, p.begin)),
              .c = mat<float>(felt),
              .ta = Trans::yes});
  matmul(ex, {.a = mat<float>(p.inverse), .b = mat<float>(felt), .c = mat<float>(target), .beta = 1});
}

bool CoupledRows::pass(Exec& ex, ConstTensorView target, bool sweeps, const Code& code) {
  const int64_t in = target.cols();
  int64_t first = 0;
  for (const Step& step : steps_) {
    const int64_t some = step.rows.numel();
    const Tensor own = ex.alloc(DType::f32, {some, in}), values = ex.alloc(DType::f32, {some, in});
    permute(ex, target, step.rows, {}, own);
    ex.copy(own, values);
    const auto each_part = [&](const auto& see) {
      int64_t at = 0;
      for (const Part& p : step.parts) {
        see(p, at, at + p.end - p.begin);
        at += p.end - p.begin;
      }
    };
    each_part([&](const Part& p, int64_t at, int64_t end) { move(ex, p, sweeps, values.view().row_range(at, end)); });
    if (!code(first, values)) return false;
    add(ex, values, own, -1);
    each_part([&](const Part& p, int64_t at, int64_t end) {
      const Tensor& errors = sets_[static_cast<size_t>(p.set)].errors;
      ex.copy(own.view().row_range(at, end), errors.view().row_range(p.begin, p.end));
    });
    first += some;
  }
  return true;
}

bool CoupledRows::walk(Exec& ex, ConstTensorView target, const Code& code) {
  for (Set& set : sets_) set.errors = ex.alloc(DType::f32, {set.factor.rows(), target.cols()});
  return pass(ex, target, false, code);
}

bool CoupledRows::sweep(Exec& ex, ConstTensorView target, const Code& code) { return pass(ex, target, true, code); }

int64_t coupled_bytes(int64_t out, int64_t in, bool sweeps) {
  const int64_t n = OutputCurvature::rows_of(out, 0), some = (out + kCoupledSteps - 1) / kCoupledSteps;
  const int64_t kept = sweeps ? OutputCurvature::bytes(out) : 0, blocks = (sweeps ? 8 : 4) * n * n / kCoupledSteps;
  // Factoring a set, in f64; or errors, and of a step its rows in three places, four in a sweep.
  return kept + std::max(12 * n * n, 4 * out * in + (sweeps ? 16 : 12) * some * in + blocks);
}

}  // namespace fewbit
