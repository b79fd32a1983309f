// The selective state space: the CPU half. A head of a sequence at a time, a token at a time, as the contract has it.
#include "kernels/recurrent/state_scan.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit {

void check_scan(const ScanInputs& in, int64_t seqs, const ScanArgs& a, TensorView state, TensorView out) {
  const int64_t tokens = out.rows();
  FEWBIT_ASSERT(a.groups > 0 && a.heads % a.groups == 0 && seqs > 0 && tokens % seqs == 0);
  FEWBIT_ASSERT(out.cols() == a.heads * a.head_dim);
  FEWBIT_ASSERT(in.x.rows() == tokens && in.x.cols() == a.width() && in.x.dtype == out.dtype);
  FEWBIT_ASSERT(in.dt.rows() == tokens && in.dt.cols() == a.heads && in.dt.dtype == out.dtype);
  for (const ConstTensorView* v : {&in.a_log, &in.dt_bias, &in.d})
    FEWBIT_ASSERT(v->dtype == DType::f32 && v->numel() == a.heads);
  FEWBIT_ASSERT(!state.data || (state.dtype == DType::f32 && state.numel() == seqs * a.heads * a.head_dim * a.state));
}

namespace cpu {
namespace {

double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One head of one sequence, S [head_dim, state].
template <class T>
struct Head {
  const ScanInputs& in;
  const ScanArgs& a;
  int64_t head;
  float* s;
  std::vector<float> x, b, c;

  Head(const ScanInputs& inputs, const ScanArgs& args, int64_t h, float* state)
      : in(inputs),
        a(args),
        head(h),
        s(state),
        x(static_cast<size_t>(a.head_dim)),
        b(static_cast<size_t>(a.state)),
        c(static_cast<size_t>(a.state)) {}

  void step(int64_t token, T* to) {
    const T* row = in.x.as<T>() + token * a.width();
    const T* group = row + a.heads * a.head_dim + head / (a.heads / a.groups) * a.state;
    widen(row + head * a.head_dim, x.data(), a.head_dim);
    widen(group, b.data(), a.state);
    widen(group + a.groups * a.state, c.data(), a.state);
    float raw = 0;
    widen(in.dt.as<T>() + token * a.heads + head, &raw, 1);
    const double dt = softplus(raw + in.dt_bias.as<float>()[head]);
    const auto keep = static_cast<float>(std::exp(-std::exp(static_cast<double>(in.a_log.as<float>()[head])) * dt));
    for (int64_t p = 0; p < a.head_dim; ++p) {
      float* state = s + p * a.state;
      float& value = x[static_cast<size_t>(p)];
      for (int64_t n = 0; n < a.state; ++n) state[n] *= keep;
      axpy(static_cast<float>(dt) * value, b.data(), state, a.state);
      value = dot(c.data(), state, a.state) + in.d.as<float>()[head] * value;
    }
    narrow(x.data(), to, a.head_dim);
  }
};

}  // namespace

void state_scan(Exec&, const ScanInputs& in, int64_t seqs, const ScanArgs& a, TensorView state, TensorView out) {
  const int64_t len = out.rows() / seqs, size = a.head_dim * a.state;
  for_float_type(out.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(seqs * a.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t seq = i / a.heads, h = i % a.heads;
        std::vector<float> own(state.data ? 0 : static_cast<size_t>(size), 0.f);
        Head<T> head(in, a, h, state.data ? state.as<float>() + i * size : own.data());
        for (int64_t t = seq * len; t < (seq + 1) * len; ++t)
          head.step(t, out.as<T>() + t * a.heads * a.head_dim + h * a.head_dim);
      }
    });
  });
}

}  // namespace cpu
}  // namespace fewbit
