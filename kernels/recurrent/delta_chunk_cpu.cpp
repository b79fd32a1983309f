// A chunk of the gated delta rule in products (the WY form of Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024,
// section 3.3). With P[s, t] the decay behind token s up to and with t, what token t writes is
//   u_t = beta_t (v_t - S_0^T (P[0, t] k_t) - sum_{s < t} (P[s, t] k_s . k_t) u_s)
// a triangular system for all u at once; then out_t = S_0^T (P[0, t] q_t) + sum_{s <= t} (P[s, t] k_s . q_t) u_s, and S
// becomes P[0, n] S_0 + sum_s (P[s, n] k_s) u_s^T. A decay is only ever multiplied up, never divided by, so that strong
// ones vanish and nothing overflows: the tokens go in blocks, and the keys before a block are carried to its begin.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "kernels/recurrent/delta_chunk.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kBlock = 8;  // tokens whose pairs are multiplied one by one

// y[i] = x[i] * f[i], with 0 for what is too small to matter: subnormal numbers are slow.
void decayed(const float* x, const float* f, float* y, int64_t n) {
  constexpr float kNothing = 1e-30f;
  for (int64_t i = 0; i < n; ++i) {
    const float p = x[i] * f[i];
    y[i] = std::fabs(p) < kNothing ? 0.f : p;
  }
}

}  // namespace

DeltaChunk::DeltaChunk(int64_t keys, int64_t values) : k_dim(keys), v_dim(values) {
  for (auto* x : {&q, &k, &keep, &late_k_, &since_q_, &since_k_}) x->resize(static_cast<size_t>(kDeltaChunk * k_dim));
  for (auto* x : {&v, &out}) x->resize(static_cast<size_t>(kDeltaChunk * v_dim));
  for (auto* x : {&of_keys_, &of_queries_}) x->resize(static_cast<size_t>(kDeltaChunk * kDeltaChunk));
  beta.resize(kDeltaChunk);
  decay_.resize(static_cast<size_t>(k_dim));
}

// The rows [begin, end) of both triangles, and what else of them run() needs.
void DeltaChunk::pair_up_block(int64_t begin, int64_t end) {
  const int64_t n = k_dim;
  std::vector<float> of_block(static_cast<size_t>(n), 1.f);  // its own decay so far
  for (int64_t t = begin; t < end; ++t) {
    decayed(of_block.data(), keep.data() + t * n, of_block.data(), n);
    decayed(k.data() + t * n, of_block.data(), since_k_.data() + t * n, n);
    decayed(q.data() + t * n, of_block.data(), since_q_.data() + t * n, n);
  }
  if (begin > 0) {
    const auto pairs = [&](const std::vector<float>& since, std::vector<float>& to) {
      blas::gemm(CblasNoTrans, CblasTrans, end - begin, begin, n, 1.f, since.data() + begin * n, n, late_k_.data(), n,
                 0.f, to.data() + begin * kDeltaChunk, kDeltaChunk);
    };
    pairs(since_k_, of_keys_);
    pairs(since_q_, of_queries_);
  }
  for (int64_t s = 0; s < begin; ++s) decayed(late_k_.data() + s * n, of_block.data(), late_k_.data() + s * n, n);
  for (int64_t s = begin; s < end; ++s) {
    float* key = late_k_.data() + s * n;
    std::copy_n(k.data() + s * n, n, key);
    of_queries_[static_cast<size_t>(s * kDeltaChunk + s)] = dot(key, q.data() + s * n, n);
    for (int64_t t = s + 1; t < end; ++t) {
      decayed(key, keep.data() + t * n, key, n);
      of_keys_[static_cast<size_t>(t * kDeltaChunk + s)] = dot(key, k.data() + t * n, n);
      of_queries_[static_cast<size_t>(t * kDeltaChunk + s)] = dot(key, q.data() + t * n, n);
    }
  }
  for (int64_t t = begin; t < end; ++t) {
    decayed(since_k_.data() + t * n, decay_.data(), since_k_.data() + t * n, n);
    decayed(since_q_.data() + t * n, decay_.data(), since_q_.data() + t * n, n);
  }
  decayed(decay_.data(), of_block.data(), decay_.data(), n);
}

void DeltaChunk::pair_up(int64_t tokens) {
  std::fill(decay_.begin(), decay_.end(), 1.f);
  std::fill(of_queries_.begin(), of_queries_.end(), 0.f);
  for (int64_t begin = 0; begin < tokens; begin += kBlock) pair_up_block(begin, std::min(tokens, begin + kBlock));
}

void DeltaChunk::run(int64_t tokens, float* s) {
  blas::use_one_thread();
  pair_up(tokens);
  const auto rows_of_state = [&](const std::vector<float>& rows, float factor, float more, float* to) {
    blas::gemm(CblasNoTrans, CblasNoTrans, tokens, v_dim, k_dim, factor, rows.data(), k_dim, s, v_dim, more, to, v_dim);
  };
  rows_of_state(since_k_, -1, 1, v.data());
  for (int64_t t = 0; t < tokens; ++t) {
    const float b = beta[static_cast<size_t>(t)];
    for (int64_t i = 0; i < v_dim; ++i) v[static_cast<size_t>(t * v_dim + i)] *= b;
    for (int64_t i = 0; i < t; ++i) of_keys_[static_cast<size_t>(t * kDeltaChunk + i)] *= b;
  }
  blas::functions().cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, static_cast<int>(tokens),
                                static_cast<int>(v_dim), 1.f, of_keys_.data(), static_cast<int>(kDeltaChunk), v.data(),
                                static_cast<int>(v_dim));
  rows_of_state(since_q_, 1, 0, out.data());
  blas::gemm(CblasNoTrans, CblasNoTrans, tokens, v_dim, tokens, 1.f, of_queries_.data(), kDeltaChunk, v.data(), v_dim,
             1.f, out.data(), v_dim);
  for (int64_t i = 0; i < k_dim; ++i)
    for (int64_t j = 0; j < v_dim; ++j) s[i * v_dim + j] *= decay_[static_cast<size_t>(i)];
  blas::gemm(CblasTrans, CblasNoTrans, k_dim, v_dim, tokens, 1.f, late_k_.data(), k_dim, v.data(), v_dim, 1.f, s,
             v_dim);
}

}  // namespace fewbit::cpu
