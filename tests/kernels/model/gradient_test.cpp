// The ops of a block's way back: each against central differences of its forward formula, in double.
#include <cmath>

#include "kernels/attention/attention_grad.h"
#include "kernels/model/gated_act_grad.h"
#include "kernels/model/norm_grad.h"
#include "tests/kernels/model/gradient_check.h"
#include "tests/support/devices.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(NormGrad, AgreesWithDifferences) {
  for (const MatrixShape s : {MatrixShape{1, 5}, MatrixShape{3, 31}, MatrixShape{2, 300}})
    for (const float offset : {0.f, 1.f})
      for (const float beta : {0.f, 1.f}) {
        const Tensor x = random_normal(DType::f32, {s.rows, s.cols}, 1, 2.f),
                     w = random_normal(DType::f32, {s.cols}, 2), dy = random_normal(DType::f32, {s.rows, s.cols}, 3),
                     before = random_normal(DType::f32, {s.rows, s.cols}, 4);
        const std::vector<double> weight = doubles(w);
        const auto forward = [&](const std::vector<double>& v) {
          std::vector<double> y(v.size());
          for (int64_t r = 0; r < s.rows; ++r) {
            double squares = 0;
            for (int64_t c = 0; c < s.cols; ++c) squares += std::pow(v[static_cast<size_t>(r * s.cols + c)], 2);
            const double inverse = 1 / std::sqrt(squares / static_cast<double>(s.cols) + 1e-3);
            for (int64_t c = 0; c < s.cols; ++c)
              y[static_cast<size_t>(r * s.cols + c)] =
                  v[static_cast<size_t>(r * s.cols + c)] * inverse * (weight[static_cast<size_t>(c)] + offset);
          }
          return y;
        };
        std::vector<double> expected = numeric_gradient(doubles(x), doubles(dy), forward);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += beta * before.as<float>()[i];
        const Tensor dx = beta == 0 ? poisoned(ex, DType::f32, x.shape()) : ex.to_device(before);
        rms_norm_grad(ex, ex.to_device(x), ex.to_device(w), 1e-3f, offset, ex.to_device(dy), beta, dx);
        EXPECT_LE(error_of(ex, dx, expected), tol::kF32Product) << s.rows << " x " << s.cols << " beta " << beta;
      }
}

FEWBIT_DEVICE_TEST(NormGrad, InPlace) {
  const Tensor x = ex.to_device(random_normal(DType::f32, {6, 64}, 1)),
               w = ex.to_device(random_normal(DType::f32, {64}, 2)),
               dy = ex.to_device(random_normal(DType::f32, {6, 64}, 3)), dx = poisoned(ex, DType::f32, {6, 64});
  rms_norm_grad(ex, x, w, 1e-6f, 0.f, dy, 0.f, dx);
  rms_norm_grad(ex, x, w, 1e-6f, 0.f, dy, 0.f, dy);
  EXPECT_EQ(first_difference(ex.to_host(dy), ex.to_host(dx)), "");
}

FEWBIT_DEVICE_TEST(GatedActGrad, AgreesWithDifferences) {
  for (const ActKind act : {ActKind::silu, ActKind::gelu_tanh})
    for (const int64_t n : {1, 33, 300}) {
      const Tensor gate = random_normal(DType::f32, {n}, 1, 3.f), up = random_normal(DType::f32, {n}, 2),
                   dy = random_normal(DType::f32, {n}, 3);
      const auto value = [&](double g, double u) {
        if (act == ActKind::silu) return g / (1 + std::exp(-g)) * u;
        return g / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
      };
      const std::vector<double> g = doubles(gate), u = doubles(up);
      const auto of = [&](const std::vector<double>& gates, const std::vector<double>& ups) {
        std::vector<double> y(gates.size());
        for (size_t i = 0; i < y.size(); ++i) y[i] = value(gates[i], ups[i]);
        return y;
      };
      const Tensor d_gate = poisoned(ex, DType::f32, {n}), d_up = poisoned(ex, DType::f32, {n});
      gated_act_grad(ex, ex.to_device(gate), ex.to_device(up), act, ex.to_device(dy), d_gate, d_up);
      EXPECT_LE(error_of(ex, d_gate, numeric_gradient(g, doubles(dy), [&](const auto& v) { return of(v, u); })),
                tol::kF32Product);
      EXPECT_LE(error_of(ex, d_up, numeric_gradient(u, doubles(dy), [&](const auto& v) { return of(g, v); })),
                tol::kF32Product);
    }
}

struct AttentionCase {
  int64_t seqs, len;
  AttentionArgs args;
};

// Causal attention by its definition.
std::vector<double> attend(const AttentionCase& c, const std::vector<double>& q, const std::vector<double>& k,
                           const std::vector<double>& v) {
  const AttentionArgs& a = c.args;
  const int64_t d = a.head_dim, q_cols = a.heads * d, kv_cols = a.kv_heads * d;
  std::vector<double> out(q.size(), 0.0);
  for (int64_t t = 0; t < c.seqs * c.len; ++t)
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t start = t / c.len * c.len, kv = h / (a.heads / a.kv_heads);
      const int64_t first = a.window > 0 ? std::max(start, t - a.window + 1) : start;
      std::vector<double> p;
      double sum = 0;
      for (int64_t j = first; j <= t; ++j) {
        double s = 0;
        for (int64_t i = 0; i < d; ++i)
          s += a.scale * q[static_cast<size_t>(t * q_cols + h * d + i)] *
               k[static_cast<size_t>(j * kv_cols + kv * d + i)];
        if (a.softcap > 0) s = a.softcap * std::tanh(s / a.softcap);
        p.push_back(std::exp(s));
        sum += p.back();
      }
      for (int64_t j = first; j <= t; ++j)
        for (int64_t i = 0; i < d; ++i)
          out[static_cast<size_t>(t * q_cols + h * d + i)] +=
              p[static_cast<size_t>(j - first)] / sum * v[static_cast<size_t>(j * kv_cols + kv * d + i)];
    }
  return out;
}

FEWBIT_DEVICE_TEST(AttentionGrad, AgreesWithDifferences) {
  const auto args = [](int heads, int kv, int64_t window, float softcap) {
    return AttentionArgs{
        .heads = heads,
        .kv_heads = kv,
        .head_dim = 4,
        .scale = 0.5f,
        .window = window,
        .softcap = softcap,
    };
  };
  for (const AttentionCase& c : {AttentionCase{2, 7, args(4, 2, 0, 0)}, AttentionCase{1, 12, args(2, 2, 5, 0)},
                                 AttentionCase{1, 11, args(3, 1, 0, 2.f)}, AttentionCase{2, 1, args(2, 1, 0, 0)},
                                 AttentionCase{1, 9, args(2, 1, 4, 1.5f)}}) {
    const int64_t tokens = c.seqs * c.len, q_cols = c.args.heads * 4, kv_cols = c.args.kv_heads * 4;
    const Tensor q = random_normal(DType::f32, {tokens, q_cols}, 1),
                 k = random_normal(DType::f32, {tokens, kv_cols}, 2),
                 v = random_normal(DType::f32, {tokens, kv_cols}, 3),
                 dy = random_normal(DType::f32, {tokens, q_cols}, 4);
    const Tensor dq = poisoned(ex, DType::f32, q.shape()), dk = poisoned(ex, DType::f32, k.shape()),
                 dv = poisoned(ex, DType::f32, v.shape());
    attention_grad(ex, ex.to_device(q), ex.to_device(k), ex.to_device(v), c.seqs, c.args, ex.to_device(dy),
                   {.q = dq, .k = dk, .v = dv});
    const std::vector<double> x = doubles(q), y = doubles(k), z = doubles(v), grad = doubles(dy);
    // A lone query's weight is 1 whatever its score: its gradient is 0, which has no relative error.
    if (c.len > 1) {
      EXPECT_LE(error_of(ex, dq, numeric_gradient(x, grad, [&](const auto& t) { return attend(c, t, y, z); })),
                tol::kF32Product);
      EXPECT_LE(error_of(ex, dk, numeric_gradient(y, grad, [&](const auto& t) { return attend(c, x, t, z); })),
                tol::kF32Product);
    }
    EXPECT_LE(error_of(ex, dv, numeric_gradient(z, grad, [&](const auto& t) { return attend(c, x, y, t); })),
              tol::kF32Product);
  }
}

// Several blocks of queries, against the definition's derivative along a direction.
FEWBIT_DEVICE_TEST(AttentionGrad, LongSequences) {
  for (const int64_t window : {0, 150}) {
    const AttentionCase c{1, 300, {.heads = 2, .kv_heads = 1, .head_dim = 16, .scale = 0.25f, .window = window}};
    const Tensor q = random_normal(DType::f32, {300, 32}, 1), k = random_normal(DType::f32, {300, 16}, 2),
                 v = random_normal(DType::f32, {300, 16}, 3), dy = random_normal(DType::f32, {300, 32}, 4);
    const Tensor dq = poisoned(ex, DType::f32, q.shape()), dk = poisoned(ex, DType::f32, k.shape()),
                 dv = poisoned(ex, DType::f32, v.shape());
    attention_grad(ex, ex.to_device(q), ex.to_device(k), ex.to_device(v), 1, c.args, ex.to_device(dy),
                   {.q = dq, .k = dk, .v = dv});
    const std::vector<double> grads[] = {doubles(ex.to_host(dq)), doubles(ex.to_host(dk)), doubles(ex.to_host(dv))};
    const std::vector<double> weight = doubles(dy);
    for (int which = 0; which < 3; ++which) {
      const auto value = [&](double t) {
        std::vector<double> x[] = {doubles(q), doubles(k), doubles(v)};
        const std::vector<double> along =
            doubles(random_normal(DType::f32, {static_cast<int64_t>(x[which].size())}, 5));
        for (size_t i = 0; i < along.size(); ++i) x[which][i] += t * along[i];
        const std::vector<double> y = attend(c, x[0], x[1], x[2]);
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weight[i];
        return sum;
      };
      const std::vector<double> along =
          doubles(random_normal(DType::f32, {static_cast<int64_t>(grads[which].size())}, 5));
      double slope = 0, size = 0;
      for (size_t i = 0; i < along.size(); ++i) {
        slope += grads[which][i] * along[i];
        size += grads[which][i] * grads[which][i];
      }
      EXPECT_NEAR(slope, (value(1e-5) - value(-1e-5)) / 2e-5, tol::kF32Product * std::sqrt(size))
          << window << " " << which;
    }
  }
}

}  // namespace
}  // namespace fewbit::test
