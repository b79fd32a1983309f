// The short causal convolution: the CPU half. A sequence's inputs are read behind its tail, as one longer sequence.
#include "kernels/recurrent/short_conv.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// One sequence: x [len, channels], tail [taps - 1, channels] or null.
template <class T>
void convolve(const T* x, const float* w, const float* bias, ConvAct act, T* tail, T* y, int64_t len, int64_t channels,
              int64_t taps) {
  const int64_t before = taps - 1;
  std::vector<float> in(static_cast<size_t>((before + len) * channels), 0.f), out(static_cast<size_t>(channels));
  if (tail) widen(tail, in.data(), before * channels);
  widen(x, in.data() + before * channels, len * channels);
  for (int64_t t = 0; t < len; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      float sum = bias ? bias[c] : 0.f;
      for (int64_t i = 0; i < taps; ++i) sum += w[c * taps + i] * in[static_cast<size_t>((t + i) * channels + c)];
      out[static_cast<size_t>(c)] = act == ConvAct::silu ? sum / (1 + std::exp(-sum)) : sum;
    }
    narrow(out.data(), y + t * channels, channels);
  }
  if (tail) narrow(in.data() + len * channels, tail, before * channels);
}

}  // namespace

void short_conv(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, int64_t seqs, ConvAct act,
                TensorView tail, TensorView y) {
  const int64_t channels = x.cols(), taps = w.cols(), len = x.rows() / seqs;
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(seqs, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s)
        convolve(x.as<T>() + s * len * channels, w.as<float>(), bias.data ? bias.as<float>() : nullptr, act,
                 tail.data ? tail.as<T>() + s * (taps - 1) * channels : nullptr, y.as<T>() + s * len * channels, len,
                 channels, taps);
    });
  });
}

}  // namespace fewbit::cpu
