// The gated delta rule: the CPU half. A head of a sequence at a time, a token at a time, as the contract has it.
#include "kernels/recurrent/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
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

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

template <class T>
const T* at(const ColumnsAt& c, int64_t token, int64_t column) {
  return c.x.as<T>() + token * c.x.cols() + c.begin + column;
}

// x / sqrt(sum x^2 + 1e-6) * scale
void to_unit_length(std::vector<float>& x, float scale) {
  const double length = std::sqrt(sum_of_squares(x.data(), static_cast<int64_t>(x.size())) + 1e-6);
  for (float& v : x) v = static_cast<float>(v / length * scale);
}

// One value head of one sequence, S [k_dim, v_dim].
template <class T>
struct Head {
  const DeltaInputs& in;
  const DeltaArgs& a;
  int64_t head;
  float* s;
  std::vector<float> q, k, v, keep, found, out;

  Head(const DeltaInputs& inputs, const DeltaArgs& args, int64_t h, float* state)
      : in(inputs), a(args), head(h), s(state) {
    for (auto* x : {&q, &k, &keep}) x->resize(static_cast<size_t>(a.k_dim));
    for (auto* x : {&v, &found, &out}) x->resize(static_cast<size_t>(a.v_dim));
  }

  // keep[i]: the factor of row i.
  void read_decay(int64_t token) {
    const int64_t width = in.decay.cols(), each = width / a.v_heads;
    std::vector<float> raw(static_cast<size_t>(each));
    widen(in.decay.as<T>() + token * width + head * each, raw.data(), each);
    for (int64_t i = 0; i < a.k_dim; ++i) {
      const int64_t j = each == 1 ? 0 : i;
      const double dt = softplus(raw[static_cast<size_t>(j)] + in.dt_bias.as<float>()[head * each + j]);
      keep[static_cast<size_t>(i)] =
          static_cast<float>(std::exp(-std::exp(static_cast<double>(in.a_log.as<float>()[head])) * dt));
    }
  }

  void step(int64_t token, T* to) {
    const int64_t k_head = head / (a.v_heads / a.k_heads);
    widen(at<T>(in.q, token, k_head * a.k_dim), q.data(), a.k_dim);
    widen(at<T>(in.k, token, k_head * a.k_dim), k.data(), a.k_dim);
    widen(at<T>(in.v, token, head * a.v_dim), v.data(), a.v_dim);
    to_unit_length(q, 1 / std::sqrt(static_cast<float>(a.k_dim)));
    to_unit_length(k, 1);
    read_decay(token);
    float raw_beta = 0;
    widen(in.beta.as<T>() + token * a.v_heads + head, &raw_beta, 1);
    const float beta = 1 / (1 + std::exp(-raw_beta));
    std::fill(found.begin(), found.end(), 0.f);
    std::fill(out.begin(), out.end(), 0.f);
    for (int64_t i = 0; i < a.k_dim; ++i) {
      float* row = s + i * a.v_dim;
      for (int64_t j = 0; j < a.v_dim; ++j) row[j] *= keep[static_cast<size_t>(i)];
      axpy(k[static_cast<size_t>(i)], row, found.data(), a.v_dim);
    }
    for (size_t j = 0; j < found.size(); ++j) found[j] = beta * (v[j] - found[j]);
    for (int64_t i = 0; i < a.k_dim; ++i) {
      float* row = s + i * a.v_dim;
      axpy(k[static_cast<size_t>(i)], found.data(), row, a.v_dim);
      axpy(q[static_cast<size_t>(i)], row, out.data(), a.v_dim);
    }
    narrow(out.data(), to, a.v_dim);
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
        for (int64_t t = seq * len; t < (seq + 1) * len; ++t)
          head.step(t, out.as<T>() + t * a.v_heads * a.v_dim + h * a.v_dim);
      }
    });
  });
}

}  // namespace cpu
}  // namespace fewbit
