// Gradient of causal attention on the CPU. A kv head of a sequence is a task, so that tasks run in parallel without
// sharing sums; its query heads follow one another in blocks of queries, each of five BLAS products over the span of
// keys that the block sees.
#include "kernels/attention/attention_grad.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kQueryBlock = 128;  // queries of a BLAS product

// One query head of one sequence with its kv head; rows are q_ld and kv_ld elements apart.
struct HeadGrad {
  const float *q, *k, *v, *dy;
  float *dq, *dk, *dv;
  int64_t q_ld, kv_ld;
};

// Turns one row of scores into weights; of its n keys [begin, end) are visible, and the others get the weight 0. With a
// softcap the derivative of the cap at each score is left in `slope`.
void weigh(float* row, float* slope, int64_t begin, int64_t end, int64_t n, const AttentionArgs& a) {
  if (a.softcap > 0)
    for (int64_t j = begin; j < end; ++j) {
      const float t = std::tanh(row[j] / a.softcap);
      slope[j] = 1 - t * t;
      row[j] = a.softcap * t;
    }
  const double sum = exp_in_place(row + begin, max_of(row + begin, end - begin), end - begin);
  const auto inverse = static_cast<float>(1 / sum);
  for (int64_t j = begin; j < end; ++j) row[j] *= inverse;
  std::fill(row, row + begin, 0.f);
  std::fill(row + end, row + n, 0.f);
}

// dP of one row to dS, in place: P * (dP - sum_j P dP), times the slope of the cap where there is one.
void score_grad(const float* p, const float* slope, float* dp, int64_t begin, int64_t end, int64_t n, bool capped) {
  double mean = 0;
  for (int64_t j = begin; j < end; ++j) mean += static_cast<double>(p[j]) * dp[j];
  const auto shift = static_cast<float>(mean);
  for (int64_t j = 0; j < n; ++j) dp[j] = p[j] * (dp[j] - shift);
  if (capped)
    for (int64_t j = begin; j < end; ++j) dp[j] *= slope[j];
}

// The share of queries [q0, q1) in all three gradients. `space` is scratch memory of the task.
void query_block(const HeadGrad& h, const AttentionArgs& a, int64_t q0, int64_t q1, std::vector<float>& space) {
  const int64_t d = a.head_dim, rows = q1 - q0;
  const auto first_key = [&](int64_t i) { return a.window > 0 ? std::max<int64_t>(0, i - a.window + 1) : 0; };
  const int64_t k0 = first_key(q0), n = q1 - k0;
  space.resize(static_cast<size_t>(3 * rows * n));
  float *p = space.data(), *dp = p + rows * n, *slope = dp + rows * n;
  const float *k = h.k + k0 * h.kv_ld, *v = h.v + k0 * h.kv_ld;
  const float *q = h.q + q0 * h.q_ld, *dy = h.dy + q0 * h.q_ld;
  blas::gemm(CblasNoTrans, CblasTrans, rows, n, d, a.scale, q, h.q_ld, k, h.kv_ld, 0.f, p, n);
  for (int64_t i = 0; i < rows; ++i) weigh(p + i * n, slope + i * n, first_key(q0 + i) - k0, q0 + i + 1 - k0, n, a);
  blas::gemm(CblasTrans, CblasNoTrans, n, d, rows, 1.f, p, n, dy, h.q_ld, 1.f, h.dv + k0 * h.kv_ld, h.kv_ld);
  blas::gemm(CblasNoTrans, CblasTrans, rows, n, d, 1.f, dy, h.q_ld, v, h.kv_ld, 0.f, dp, n);
  for (int64_t i = 0; i < rows; ++i)
    score_grad(p + i * n, slope + i * n, dp + i * n, first_key(q0 + i) - k0, q0 + i + 1 - k0, n, a.softcap > 0);
  blas::gemm(CblasNoTrans, CblasNoTrans, rows, d, n, a.scale, dp, n, k, h.kv_ld, 0.f, h.dq + q0 * h.q_ld, h.q_ld);
  blas::gemm(CblasTrans, CblasNoTrans, n, d, rows, a.scale, dp, n, q, h.q_ld, 1.f, h.dk + k0 * h.kv_ld, h.kv_ld);
}

}  // namespace

void attention_grad(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
                    const AttentionArgs& a, ConstTensorView dy, const AttentionGrads& grads) {
  const int64_t d = a.head_dim, q_ld = a.heads * d, kv_ld = a.kv_heads * d, len = q.rows() / seqs;
  blas::use_one_thread();
  ex.zero(grads.k);
  ex.zero(grads.v);
  const int64_t group = a.heads / a.kv_heads;
  parallel_for(seqs * a.kv_heads, 1, [&](int64_t task, int64_t) {
    const int64_t token = task / a.kv_heads * len, kv = task % a.kv_heads;
    std::vector<float> space;
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const int64_t at = token * q_ld + h * d, kv_at = token * kv_ld + kv * d;
      const HeadGrad head{q.as<float>() + at,
                          k.as<float>() + kv_at,
                          v.as<float>() + kv_at,
                          dy.as<float>() + at,
                          grads.q.as<float>() + at,
                          grads.k.as<float>() + kv_at,
                          grads.v.as<float>() + kv_at,
                          q_ld,
                          kv_ld};
      for (int64_t q0 = 0; q0 < len; q0 += kQueryBlock)
        query_block(head, a, q0, std::min(len, q0 + kQueryBlock), space);
    }
  });
}

}  // namespace fewbit::cpu
