// The gated delta rule: the CPU half. A head of a sequence at a time; few tokens one after the other, as the contract
// has it, else chunk by chunk (delta_chunk.h).
#include "kernels/recurrent/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/recurrent/delta_chunk.h"
#include "src/core/parallel.h"

namespace fewbit {

void check_delta(const DeltaInputs& in, int64_t seqs, const DeltaArgs& a, TensorView state, TensorView out) {
  const int64_t tokens = out.rows();
  FEWBIT_ASSERT(a.k_heads > 0 && a.v_heads % a.k_heads == 0 && seqs > 0 && tokens % seqs == 0);
  FEWBIT_ASSERT(out.cols() == a.v_heads * a.v_dim);
  for (const ColumnsAt* c : {&in.q, &in.k, &in.v}) {
    const int64_t width = c == &in.v ? a.v_heads * a.v_dim : a.k_heads * a.k_dim;
    FEWBIT_ASSERT(c->x.rows() == tokens && c->x.dtype == out.dtype && c->begin + width <= c->x.cols());
  }
  FEWBIT_ASSERT(in.beta.rows() == tokens && in.beta.cols() == a.v_heads && in.beta.dtype == out.dtype);
  FEWBIT_ASSERT(in.decay.rows() == tokens && in.decay.dtype == out.dtype);
  FEWBIT_ASSERT(in.decay.cols() == a.v_heads || in.decay.cols() == a.v_heads * a.k_dim);
  FEWBIT_ASSERT(in.a_log.dtype == DType::f32 && in.a_log.numel() == a.v_heads);
  FEWBIT_ASSERT(in.dt_bias.dtype == DType::f32 && in.dt_bias.numel() == in.decay.cols());
  FEWBIT_ASSERT(!state.data || (state.dtype == DType::f32 && state.numel() == seqs * a.v_heads * a.k_dim * a.v_dim));
}

namespace cpu {
namespace {

// log(1 + e^x). log1p is slow here; what 1 + e^x loses, the quotient gives back (Kahan).
float softplus(float x) {
  if (x > 20) return x;
  const float e = std::exp(x), sum = 1 + e;
  return sum == 1 ? e : std::log(sum) * (e / (sum - 1));
}

template <class T>
const T* at(const ColumnsAt& c, int64_t token, int64_t column) {
  return c.x.as<T>() + token * c.x.cols() + c.begin + column;
}

// x / sqrt(sum x^2 + 1e-6) * scale
void to_unit_length(float* x, int64_t n, float scale) {
  const double length = std::sqrt(sum_of_squares(x, n) + 1e-6);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / length * scale);
}

constexpr int64_t kFewestInChunk = 8;  // below it products are no faster than steps

// One value head of one sequence, S [k_dim, v_dim].
template <class T>
struct Head {
  const DeltaInputs& in;
  const DeltaArgs& a;
  int64_t head;
  float* s;
  float rate;
  DeltaChunk rows;  // of the tokens at hand
  std::vector<float> raw;

  Head(const DeltaInputs& inputs, const DeltaArgs& args, int64_t h, float* state)
      : in(inputs),
        a(args),
        head(h),
        s(state),
        rate(std::exp(inputs.a_log.as<float>()[h])),
        rows(args.k_dim, args.v_dim),
        raw(static_cast<size_t>(inputs.decay.cols() / args.v_heads)) {}

  // keep[i]: the factor of row i of S.
  void read_decay(int64_t token, float* keep) {
    const int64_t width = in.decay.cols(), each = std::ssize(raw);
    widen(in.decay.as<T>() + token * width + head * each, raw.data(), each);
    for (int64_t i = 0; i < each; ++i)
      keep[i] = -rate * softplus(raw[static_cast<size_t>(i)] + in.dt_bias.as<float>()[head * each + i]);
    exp_in_place(keep, 0, each);
    if (each == 1) std::fill_n(keep, a.k_dim, keep[0]);
  }

  // A token, as row t.
  void read(int64_t token, int64_t t) {
    const int64_t k_head = head / (a.v_heads / a.k_heads);
    float *q = rows.q.data() + t * a.k_dim, *k = rows.k.data() + t * a.k_dim;
    widen(at<T>(in.q, token, k_head * a.k_dim), q, a.k_dim);
    widen(at<T>(in.k, token, k_head * a.k_dim), k, a.k_dim);
    widen(at<T>(in.v, token, head * a.v_dim), rows.v.data() + t * a.v_dim, a.v_dim);
    to_unit_length(q, a.k_dim, 1 / std::sqrt(static_cast<float>(a.k_dim)));
    to_unit_length(k, a.k_dim, 1);
    read_decay(token, rows.keep.data() + t * a.k_dim);
    float raw_beta = 0;
    widen(in.beta.as<T>() + token * a.v_heads + head, &raw_beta, 1);
    rows.beta[static_cast<size_t>(t)] = 1 / (1 + std::exp(-raw_beta));
  }

  // Row t, as the contract has it.
  void step(int64_t t) {
    const float *q = rows.q.data() + t * a.k_dim, *k = rows.k.data() + t * a.k_dim;
    float *v = rows.v.data() + t * a.v_dim, *out = rows.out.data() + t * a.v_dim;
    std::fill_n(out, a.v_dim, 0.f);  // S^T k for now
    for (int64_t i = 0; i < a.k_dim; ++i) {
      float* row = s + i * a.v_dim;
      const float keep = rows.keep[static_cast<size_t>(t * a.k_dim + i)];
      for (int64_t j = 0; j < a.v_dim; ++j) row[j] *= keep;
      axpy(k[i], row, out, a.v_dim);
    }
    for (int64_t j = 0; j < a.v_dim; ++j) v[j] = rows.beta[static_cast<size_t>(t)] * (v[j] - out[j]);
    std::fill_n(out, a.v_dim, 0.f);
    for (int64_t i = 0; i < a.k_dim; ++i) {
      float* row = s + i * a.v_dim;
      axpy(k[i], v, row, a.v_dim);
      axpy(q[i], row, out, a.v_dim);
    }
  }

  // Tokens [begin, end), at most kDeltaChunk, whose outputs go to rows of `to`, `width` apart.
  void run(int64_t begin, int64_t end, T* to, int64_t width) {
    for (int64_t t = begin; t < end; ++t) read(t, t - begin);
    if (end - begin >= kFewestInChunk)
      rows.run(end - begin, s);
    else
      for (int64_t t = 0; t < end - begin; ++t) step(t);
    for (int64_t t = 0; t < end - begin; ++t) narrow(rows.out.data() + t * a.v_dim, to + t * width, a.v_dim);
  }
};

}  // namespace

void delta_rule(Exec&, const DeltaInputs& in, int64_t seqs, const DeltaArgs& a, TensorView state, TensorView out) {
  const int64_t len = out.rows() / seqs, size = a.k_dim * a.v_dim;
  for_float_type(out.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(seqs * a.v_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t seq = i / a.v_heads, h = i % a.v_heads;
        std::vector<float> own(state.data ? 0 : static_cast<size_t>(size), 0.f);
        Head<T> head(in, a, h, state.data ? state.as<float>() + i * size : own.data());
        const int64_t width = a.v_heads * a.v_dim;
        for (int64_t t = seq * len; t < (seq + 1) * len; t += kDeltaChunk)
          head.run(t, std::min(t + kDeltaChunk, (seq + 1) * len), out.as<T>() + t * width + h * a.v_dim, width);
      }
    });
  });
}

}  // namespace cpu
}  // namespace fewbit
