#include "kernels/attention.h"

#include <cmath>
#include <cstring>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Case {
  int64_t seqs, len;
  AttentionArgs args;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto with = [](int heads, int kv, int64_t dim, int64_t window, float softcap) {
    return AttentionArgs{.heads = heads,
                         .kv_heads = kv,
                         .head_dim = dim,
                         .scale = 1 / std::sqrt(static_cast<float>(dim)),
                         .window = window,
                         .softcap = softcap};
  };
  for (const int64_t dim : {16, 64, 80, 128}) out.push_back({2, 33, with(4, 2, dim, 0, 0)});
  out.push_back({3, 1, with(2, 2, 64, 0, 0)});
  out.push_back({1, 300, with(2, 1, 64, 0, 0)});
  out.push_back({2, 97, with(4, 1, 64, 16, 0)});
  out.push_back({1, 31, with(4, 4, 64, 1, 0)});
  out.push_back({1, 45, with(8, 2, 64, 0, 5.f)});
  out.push_back({1, 200, with(6, 2, 64, 130, 3.f)});
  return out;
}

std::string name(const Case& c, DType dtype) {
  return std::string(name_of(dtype)) + " seqs " + std::to_string(c.seqs) + " len " + std::to_string(c.len) +
         " heads " + std::to_string(c.args.heads) + "/" + std::to_string(c.args.kv_heads) + " dim " +
         std::to_string(c.args.head_dim) + " window " + std::to_string(c.args.window) + " cap " +
         std::to_string(c.args.softcap);
}

struct Inputs {
  Tensor q, k, v;
};
Inputs inputs(const Case& c, DType dtype) {
  const int64_t tokens = c.seqs * c.len, kv = c.args.kv_heads * c.args.head_dim;
  return {random_normal(dtype, {tokens, c.args.heads * c.args.head_dim}, 1, 2.f),
          random_normal(dtype, {tokens, kv}, 2, 2.f), random_normal(dtype, {tokens, kv}, 3)};
}

// out of one query of one head, by the definition.
void attend(const Case& c, const std::vector<double>& q, const std::vector<double>& k,
            const std::vector<double>& v, int64_t seq, int64_t head, int64_t position,
            std::vector<double>& out) {
  const AttentionArgs& a = c.args;
  const int64_t d = a.head_dim, q_cols = a.heads * d, kv_cols = a.kv_heads * d,
                kv_head = head / (a.heads / a.kv_heads);
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
  std::vector<double> p;
  double top = -1e300, sum = 0;
  for (int64_t j = first; j <= position; ++j) {
    double score = 0;
    for (int64_t i = 0; i < d; ++i)
      score += q[static_cast<size_t>((seq * c.len + position) * q_cols + head * d + i)] *
               k[static_cast<size_t>((seq * c.len + j) * kv_cols + kv_head * d + i)];
    score *= a.scale;
    if (a.softcap > 0) score = a.softcap * std::tanh(score / a.softcap);
    p.push_back(score);
    top = std::max(top, score);
  }
  for (double& x : p) sum += x = std::exp(x - top);
  for (int64_t i = 0; i < d; ++i) {
    double value = 0;
    for (int64_t j = first; j <= position; ++j)
      value += p[static_cast<size_t>(j - first)] / sum *
               v[static_cast<size_t>((seq * c.len + j) * kv_cols + kv_head * d + i)];
    out[static_cast<size_t>((seq * c.len + position) * q_cols + head * d + i)] = value;
  }
}

std::vector<double> expected_attention(const Case& c, const Inputs& in) {
  const std::vector<double> q = doubles(in.q), k = doubles(in.k), v = doubles(in.v);
  std::vector<double> out(q.size());
  for (int64_t s = 0; s < c.seqs; ++s)
    for (int64_t h = 0; h < c.args.heads; ++h)
      for (int64_t p = 0; p < c.len; ++p) attend(c, q, k, v, s, h, p, out);
  return out;
}

FEWBIT_OP_TEST(Attention, MatchesTheDefinition) {
  for (const Case& c : cases())
    for (const DType dtype : kComputeTypes) {
      const Inputs in = inputs(c, dtype);
      const Tensor out = poisoned(ex, dtype, in.q.shape());
      attention(ex, ex.to_device(in.q), ex.to_device(in.k), ex.to_device(in.v), c.seqs, c.args, out);
      EXPECT_LE(error_of(ex, out, expected_attention(c, in)), product_tolerance(dtype)) << name(c, dtype);
    }
}

// Rows [begin, end) of every sequence, as the cached ops take them.
Tensor slice(const Tensor& t, int64_t seqs, int64_t begin, int64_t end) {
  const int64_t len = t.rows() / seqs, cols = t.cols(), row = cols * bytes_of(t.dtype());
  Tensor out = Tensor::host(t.dtype(), {seqs * (end - begin), cols});
  for (int64_t s = 0; s < seqs; ++s)
    std::memcpy(static_cast<char*>(out.view().data) + s * (end - begin) * row,
                static_cast<const char*>(t.view().data) + (s * len + begin) * row,
                static_cast<size_t>((end - begin) * row));
  return out;
}

// Feeds the sequences through the cache `step` tokens at a time; the outputs in the order of attention().
std::vector<double> through_cache(Exec& ex, const Case& c, const Inputs& in, int64_t step) {
  const AttentionArgs& a = c.args;
  const Shape shape = {c.seqs, a.kv_heads, c.len + 5, a.head_dim};
  const Tensor k_cache = poisoned(ex, in.q.dtype(), shape), v_cache = poisoned(ex, in.q.dtype(), shape);
  std::vector<double> out(static_cast<size_t>(in.q.numel()));
  const int64_t cols = in.q.cols();
  for (int64_t begin = 0; begin < c.len; begin += step) {
    const int64_t end = std::min(c.len, begin + step), n = end - begin;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < c.seqs * n; ++i) positions.push_back(static_cast<int32_t>(begin + i % n));
    const Tensor p = ex.to_device(host_i32(positions));
    kv_append(ex, ex.to_device(slice(in.k, c.seqs, begin, end)),
              ex.to_device(slice(in.v, c.seqs, begin, end)), p, k_cache, v_cache);
    const Tensor part = poisoned(ex, in.q.dtype(), {c.seqs * n, cols});
    attention_cached(ex, ex.to_device(slice(in.q, c.seqs, begin, end)), p, k_cache, v_cache, a, part);
    const std::vector<double> values = doubles(ex.to_host(part));
    for (int64_t s = 0; s < c.seqs; ++s)
      std::copy_n(values.begin() + s * n * cols, n * cols, out.begin() + (s * c.len + begin) * cols);
  }
  return out;
}

FEWBIT_OP_TEST(Attention, CachedInOneGoInChunksAndTokenByToken) {
  for (const Case& c : cases())
    for (const DType dtype : kComputeTypes) {
      const Inputs in = inputs(c, dtype);
      const std::vector<double> expected = expected_attention(c, in);
      for (const int64_t step : {c.len, int64_t{7}, int64_t{1}}) {
        const Tensor found = from_doubles(through_cache(ex, c, in, step), in.q.shape());
        EXPECT_LE(relative_error(found, from_doubles(expected, in.q.shape())), product_tolerance(dtype))
            << name(c, dtype) << " in steps of " << step;
      }
    }
}

FEWBIT_OP_TEST(KvAppend, PutsEachTokenAtItsOwnPosition) {
  const Tensor k = random_normal(DType::bf16, {2, 32}, 1), v = random_normal(DType::bf16, {2, 32}, 2);
  const Tensor k_cache = ex.alloc_zeros(DType::bf16, {2, 2, 4, 16}),
               v_cache = ex.alloc_zeros(DType::bf16, {2, 2, 4, 16});
  kv_append(ex, ex.to_device(k), ex.to_device(v), ex.to_device(host_i32({3, 1})), k_cache, v_cache);
  const std::vector<double> found = doubles(ex.to_host(k_cache)), source = doubles(k);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t p = 0; p < 4; ++p)
        for (int64_t i = 0; i < 16; ++i)
          EXPECT_EQ(found[static_cast<size_t>(((b * 2 + h) * 4 + p) * 16 + i)],
                    p == (b == 0 ? 3 : 1) ? source[static_cast<size_t>(b * 32 + h * 16 + i)] : 0.0);
}

}  // namespace
}  // namespace fewbit::test
