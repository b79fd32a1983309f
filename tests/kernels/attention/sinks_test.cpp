// Attention with a sink in every head: the weights of the keys and of the sink sum to 1, and the sink has no value.
#include <algorithm>
#include <cmath>
#include <cstring>

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

// Rows [begin, the last] of every sequence, and their positions.
Tensor last_rows(const Tensor& x, int64_t seqs, int64_t begin) {
  const int64_t len = x.rows() / seqs, row = x.bytes() / x.rows();
  Tensor out = Tensor::host(x.dtype(), {seqs * (len - begin), x.cols()});
  for (int64_t s = 0; s < seqs; ++s)
    std::memcpy(static_cast<char*>(out.view().data) + s * (len - begin) * row,
                static_cast<const char*>(x.view().data) + (s * len + begin) * row,
                static_cast<size_t>((len - begin) * row));
  return out;
}
Tensor positions_of(Exec& ex, int64_t seqs, int64_t begin, int64_t len) {
  std::vector<int32_t> positions;
  for (int64_t s = 0; s < seqs; ++s)
    for (int64_t t = begin; t < len; ++t) positions.push_back(static_cast<int32_t>(t));
  return ex.to_device(host_i32(positions));
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
      // All tokens over the cache, and the last ones, whose keys are split where the cache has room for many.
      for (const int64_t capacity : {48, 3000}) {
        const Tensor kc = ex.alloc_zeros(dtype, {seqs, kKvHeads, capacity, d}),
                     vc = ex.alloc_zeros(dtype, {seqs, kKvHeads, capacity, d});
        const KvCache cache{.k = kc, .v = vc};
        kv_append(ex, dk, dv, positions_of(ex, seqs, 0, len), cache);
        for (const int64_t begin : {int64_t{0}, len - 5, len - 1}) {
          const Tensor rows = ex.to_device(last_rows(q, seqs, begin)), at = positions_of(ex, seqs, begin, len);
          const Tensor found = poisoned(ex, dtype, rows.shape());
          attention_cached(ex, rows, at, cache, a, found);
          EXPECT_LE(relative_error(ex.to_host(found), last_rows(from_doubles(expected, q.shape()), seqs, begin)),
                    product_tolerance(dtype))
              << name_of(dtype) << " window " << window << ", from " << begin << " of " << capacity;
        }
      }
    }
}

}  // namespace
}  // namespace fewbit::test
