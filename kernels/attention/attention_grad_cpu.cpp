// Gradient of causal attention on the CPU: a key head of a sequence to a task, its query heads one after
// another in blocks of queries, five BLAS products each over the span of keys that the block sees.
#include "kernels/attention/attention_grad.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kQueryBlock = 128;

// One query head of one sequence with its key head; rows are q_ld and kv_ld elements apart.
struct HeadGrad {
  const float *q, *k, *v, *dy;
  float *dq, *dk, *dv;
  int64_t q_ld, kv_ld;
};

// Scores of one row to weights; the keys [begin, end) of the span are visible. With a softcap the derivative
// of the capped score is left in `slope`.
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

void query_block(const HeadGrad& h, const AttentionArgs& a, int64_t q0, int64_t q1, std::vector<float>& room) {
  const int64_t d = a.head_dim, rows = q1 - q0;
  const auto first_key = [&](int64_t i) { return a.window > 0 ? std::max<int64_t>(0, i - a.window + 1) : 0; };
  const int64_t k0 = first_key(q0), n = q1 - k0;
  room.resize(static_cast<size_t>(3 * rows * n));
  float *p = room.data(), *dp = p + rows * n, *slope = dp + rows * n;
  const float *k = h.k + k0 * h.kv_ld, *v = h.v + k0 * h.kv_ld;
  const float *q = h.q + q0 * h.q_ld, *dy = h.dy + q0 * h.q_ld;
  blas::gemm(CblasNoTrans, CblasTrans, rows, n, d, a.scale, q, h.q_ld, k, h.kv_ld, 0.f, p, n);
  for (int64_t i = 0; i < rows; ++i) weigh(p + i * n, slope + i * n, first_key(q0 + i) - k0, q0 + i + 1 - k0, n, a);
  blas::gemm(CblasTrans, CblasNoTrans, n, d, rows, 1.f, p, n, dy, h.q_ld, 1.f, h.dv + k0 * h.kv_ld, h.kv_ld);
  blas::gemm(CblasNoTrans, CblasTrans, rows, n, d, 1.f, dy, h.q_ld, v, h.kv_ld, 0.f, dp, n);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t begin = first_key(q0 + i) - k0, end = q0 + i + 1 - k0;
    float *pi = p + i * n, *di = dp + i * n;
    double mean = 0;
    for (int64_t j = begin; j < end; ++j) mean += static_cast<double>(pi[j]) * di[j];
    const auto shift = static_cast<float>(mean);
    for (int64_t j = 0; j < n; ++j) di[j] = pi[j] * (di[j] - shift);
    if (a.softcap > 0)
      for (int64_t j = begin; j < end; ++j) di[j] *= slope[i * n + j];
  }
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
  const int64_t shared = a.heads / a.kv_heads;
  parallel_for(seqs * a.kv_heads, 1, [&](int64_t task, int64_t) {
    const int64_t token = task / a.kv_heads * len, kv = task % a.kv_heads;
    std::vector<float> room;
    for (int64_t h = kv * shared; h < (kv + 1) * shared; ++h) {
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
      for (int64_t q0 = 0; q0 < len; q0 += kQueryBlock) query_block(head, a, q0, std::min(len, q0 + kQueryBlock), room);
    }
  });
}

}  // namespace fewbit::cpu
