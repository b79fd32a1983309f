// Attention with a sink in every head: the weights of the keys and of the sink sum to 1, and the sink has no value.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

constexpr int kHeads = 4, kKvHeads = 2;

std::vector<double> reference_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks, int64_t len,
                                 const AttentionArgs& a) {
  const std::vector<double> x = doubles(q), keys = doubles(k), values = doubles(v), s = doubles(sinks);
  const int64_t d = a.head_dim, tokens = q.rows();
  std::vector<double> out(x.size());
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t kv = h / (kHeads / kKvHeads), first = t / len * len;
      double sum = std::exp(s[static_cast<size_t>(h)]);
      for (int64_t j = a.window > 0 ? std::max(first, t - a.window + 1) : first; j <= t; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c)
          score +=
              x[static_cast<size_t>((t * kHeads + h) * d + c)] * keys[static_cast<size_t>((j * kKvHeads + kv) * d + c)];
        const double weight = std::exp(a.scale * score);
        sum += weight;
        for (int64_t c = 0; c < d; ++c)
          out[static_cast<size_t>((t * kHeads + h) * d + c)] +=
              weight * values[static_cast<size_t>((j * kKvHeads + kv) * d + c)];
      }
      for (int64_t c = 0; c < d; ++c) out[static_cast<size_t>((t * kHeads + h) * d + c)] /= sum;
    }
  return out;
}

FEWBIT_DEVICE_TEST(AttentionSinks, TakeTheirShareOfTheWeights) {
  const int64_t seqs = 2, len = 37, d = 64;
  for (const DType dtype : kComputeTypes)
    for (const int64_t window : {0, 16}) {
      const Tensor q = random_normal(dtype, {seqs * len, kHeads * d}, 1),
                   k = random_normal(dtype, {seqs * len, kKvHeads * d}, 2),
                   v = random_normal(dtype, {seqs * len, kKvHeads * d}, 3),
                   sinks = random_normal(DType::f32, {kHeads}, 4, 3.f), on_device = ex.to_device(sinks);
      const AttentionArgs a{
          .heads = kHeads, .kv_heads = kKvHeads, .head_dim = d, .scale = 0.125f, .window = window, .sinks = on_device};
      const std::vector<double> expected = reference_of(q, k, v, sinks, len, a);
      const Tensor out = poisoned(ex, dtype, q.shape()), dq = ex.to_device(q), dk = ex.to_device(k),
                   dv = ex.to_device(v);
      attention(ex, dq, dk, dv, seqs, a, out);
      EXPECT_LE(error_of(ex, out, expected), product_tolerance(dtype)) << name_of(dtype) << " window " << window;
      const Tensor kc = ex.alloc_zeros(dtype, {seqs, kKvHeads, 48, d}),
                   vc = ex.alloc_zeros(dtype, {seqs, kKvHeads, 48, d});
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < seqs * len; ++t) positions.push_back(static_cast<int32_t>(t % len));
      const Tensor at = ex.to_device(host_i32(positions)), cached = poisoned(ex, dtype, q.shape());
      const KvCache cache{.k = kc, .v = vc};
      kv_append(ex, dk, dv, at, cache);
      attention_cached(ex, dq, at, cache, a, cached);
      EXPECT_LE(error_of(ex, cached, expected), product_tolerance(dtype)) << name_of(dtype) << " window " << window;
    }
}

}  // namespace
}  // namespace fewbit::test
