#include "kernels/attention/attention.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/tile_product.h"
#include "kernels/kv/int4_rows.h"
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
  for (const int64_t dim : {16, 24, 64, 80, 96, 128, 256, 320, 512}) out.push_back({2, 33, with(4, 2, dim, 0, 0)});
  out.push_back({3, 1, with(2, 2, 64, 0, 0)});
  out.push_back({1, 300, with(2, 1, 64, 0, 0)});
  out.push_back({2, 97, with(4, 1, 64, 16, 0)});
  out.push_back({1, 31, with(4, 4, 64, 1, 0)});
  out.push_back({1, 45, with(8, 2, 64, 0, 5.f)});
  out.push_back({1, 200, with(6, 2, 64, 130, 3.f)});
  out.push_back({2, 300, with(4, 2, 128, 0, 0)});
  out.push_back({1, 259, with(2, 1, 128, 40, 0)});
  // One new token with 5, 8, 9 and 16 query rows a kv head: they fill one group of eight columns, two, or parts of
  // them.
  out.push_back({1, 50, with(5, 1, 128, 0, 0)});
  out.push_back({2, 65, with(16, 2, 128, 0, 0)});
  out.push_back({1, 49, with(9, 1, 128, 20, 4.f)});
  out.push_back({1, 33, with(16, 1, 64, 0, 0)});
  out.push_back({1, 40, with(16, 1, 96, 17, 0)});
  out.push_back({1, 37, with(16, 1, 80, 0, 2.f)});
  out.push_back({1, 34, with(12, 1, 256, 0, 0)});
  out.push_back({1, 30, with(4, 1, 112, 0, 0)});
  for (const int64_t len : {16, 50, 97}) {  // one chunk, several, and a part of one
    out.push_back({2, len, with(4, 2, 64, 0, 0)});
    out.back().args.chunk = 16;
  }
  return out;
}

// Each case is a test of its own, so that the slow checkers of a GPU can take the small ones.
class AttentionOn : public CasesOnDevices<Case> {
 protected:
  static const Case& c() { return the_case(); }
};

std::string name(const testing::TestParamInfo<AttentionOn::ParamType>& info) {
  const auto& [c, device] = info.param;
  std::string s = "seqs" + std::to_string(c.seqs) + "_len" + std::to_string(c.len) + "_heads" +
                  std::to_string(c.args.heads) + "of" + std::to_string(c.args.kv_heads) + "_dim" +
                  std::to_string(c.args.head_dim);
  if (c.args.window > 0) s += "_window" + std::to_string(c.args.window);
  if (c.args.softcap > 0) s += "_capped";
  if (c.args.chunk > 0) s += "_chunk" + std::to_string(c.args.chunk);
  return s + "_" + device;
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionOn, testing::Combine(testing::ValuesIn(cases()), every_device()), name);

struct Inputs {
  Tensor q, k, v;
};
Inputs inputs(const Case& c, DType dtype) {
  const int64_t tokens = c.seqs * c.len, kv = c.args.kv_heads * c.args.head_dim;
  return {random_normal(dtype, {tokens, c.args.heads * c.args.head_dim}, 1, 2.f),
          random_normal(dtype, {tokens, kv}, 2, 2.f), random_normal(dtype, {tokens, kv}, 3)};
}

// out of one query of one head, by the definition.
void attend(const Case& c, const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
            int64_t seq, int64_t head, int64_t position, std::vector<double>& out) {
  const AttentionArgs& a = c.args;
  const int64_t d = a.head_dim, q_cols = a.heads * d, kv_cols = a.kv_heads * d, kv_head = head / (a.heads / a.kv_heads);
  const int64_t first = a.chunk > 0    ? position / a.chunk * a.chunk
                        : a.window > 0 ? std::max<int64_t>(0, position - a.window + 1)
                                       : 0;
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

TEST_P(AttentionOn, MatchesTheDefinition) {
  Exec ex = exec();
  for (const DType dtype : kComputeTypes) {
    const Inputs in = inputs(c(), dtype);
    const Tensor out = poisoned(ex, dtype, in.q.shape());
    attention(ex, ex.to_device(in.q), ex.to_device(in.k), ex.to_device(in.v), c().seqs, c().args, out);
    EXPECT_LE(error_of(ex, out, expected_attention(c(), in)), product_tolerance(dtype)) << name_of(dtype);
  }
}

// Through the matrix unit the keys are cut where its tiles end, not where a block of queries does.
TEST(AttentionOnTheMatrixUnit, EarlierRowsHaveTheBitsOfTheShorterSequence) {
  if (!cpu::has_tiles()) GTEST_SKIP() << "this CPU has no products of bf16, or FEWBIT_BF16=0";
  Exec ex = Exec::cpu();
  for (const int64_t window : {0, 75}) {
    const Case whole{1, 300, {.heads = 2, .kv_heads = 1, .head_dim = 64, .scale = 0.125f, .window = window}};
    const Inputs in = inputs(whole, DType::bf16);
    const Tensor all = poisoned(ex, DType::bf16, in.q.shape());
    attention(ex, in.q, in.k, in.v, 1, whole.args, all);
    for (const int64_t len : {1, 16, 47, 64, 129, 290}) {
      const Tensor some = poisoned(ex, DType::bf16, {len, in.q.cols()});
      attention(ex, in.q.view().row_range(0, len), in.k.view().row_range(0, len), in.v.view().row_range(0, len), 1,
                whole.args, some);
      EXPECT_EQ(std::memcmp(some.as<bf16>(), all.as<bf16>(), static_cast<size_t>(some.bytes())), 0) << len;
    }
  }
}

// Tokens [begin, end) of every sequence, one after another, as the cached ops take them.
Tensor token_rows(const Tensor& t, int64_t seqs, int64_t begin, int64_t end) {
  const int64_t len = t.rows() / seqs, cols = t.cols(), row = cols * bytes_of(t.dtype());
  Tensor out = Tensor::host(t.dtype(), {seqs * (end - begin), cols});
  for (int64_t s = 0; s < seqs; ++s)
    std::memcpy(static_cast<char*>(out.view().data) + s * (end - begin) * row,
                static_cast<const char*>(t.view().data) + (s * len + begin) * row,
                static_cast<size_t>((end - begin) * row));
  return out;
}

// A cache of `shape` [batch, kv_heads, capacity, head_dim], poisoned except for the static scales of FP8: one for each
// kv head, all different.
struct Cache {
  Tensor k, v, k_scales, v_scales;
  KvCache view() const { return {k, v, k_scales, v_scales}; }
};
Cache make_cache(Exec& ex, DType dtype, const Shape& shape) {
  const Shape stored{shape[0], shape[1], shape[2], dtype == DType::u8 ? shape[3] / 2 : shape[3]};
  Cache c{poisoned(ex, dtype, stored), poisoned(ex, dtype, stored), {}, {}};
  if (dtype == DType::u8) {
    const Shape scales{shape[0], shape[1], shape[2], 2 * int4_groups(shape[3])};
    c.k_scales = poisoned(ex, DType::bf16, scales);
    c.v_scales = poisoned(ex, DType::bf16, scales);
  }
  if (dtype == DType::i8) {
    c.k_scales = poisoned(ex, DType::f32, {shape[0], shape[1], shape[2]});
    c.v_scales = poisoned(ex, DType::f32, {shape[0], shape[1], shape[2]});
  } else if (dtype == DType::f8_e4m3) {
    std::vector<float> scales;
    for (int64_t h = 0; h < shape[1]; ++h) scales.push_back(0.01f * static_cast<float>(3 + h));
    const Tensor host = Tensor::host_from<float>(DType::f32, {shape[1]}, scales);
    c.k_scales = ex.to_device(host);
    c.v_scales = ex.to_device(host);
  }
  return c;
}

// Feeds the sequences through a cache: `prompt` tokens at once, the others `step` at a time; the outputs in
// the order of attention().
std::vector<double> through_cache(Exec& ex, const Case& c, const Inputs& in, const Cache& cache, int64_t step) {
  std::vector<double> out(static_cast<size_t>(in.q.numel()));
  const int64_t cols = in.q.cols();
  for (int64_t begin = 0; begin < c.len; begin += step) {
    const int64_t end = std::min(c.len, begin + step), n = end - begin;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < c.seqs * n; ++i) positions.push_back(static_cast<int32_t>(begin + i % n));
    const Tensor p = ex.to_device(host_i32(positions));
    kv_append(ex, ex.to_device(token_rows(in.k, c.seqs, begin, end)),
              ex.to_device(token_rows(in.v, c.seqs, begin, end)), p, cache.view());
    const Tensor part = poisoned(ex, in.q.dtype(), {c.seqs * n, cols});
    attention_cached(ex, ex.to_device(token_rows(in.q, c.seqs, begin, end)), p, cache.view(), c.args, part);
    const std::vector<double> values = doubles(ex.to_host(part));
    for (int64_t s = 0; s < c.seqs; ++s)
      std::copy_n(values.begin() + s * n * cols, n * cols, out.begin() + (s * c.len + begin) * cols);
  }
  return out;
}

Shape cache_shape(const Case& c) { return {c.seqs, c.args.kv_heads, c.len + 5, c.args.head_dim}; }

TEST_P(AttentionOn, CachedInOneGoInChunksAndTokenByToken) {
  Exec ex = exec();
  for (const DType dtype : kComputeTypes) {
    const Inputs in = inputs(c(), dtype);
    const Tensor expected = from_doubles(expected_attention(c(), in), in.q.shape());
    for (const int64_t step : {c().len, int64_t{7}, int64_t{1}}) {
      const Cache cache = make_cache(ex, dtype, cache_shape(c()));
      const Tensor found = from_doubles(through_cache(ex, c(), in, cache, step), in.q.shape());
      EXPECT_LE(relative_error(found, expected), product_tolerance(dtype)) << name_of(dtype) << " in steps of " << step;
    }
  }
}

// The values that a cache of codes holds of x [seqs * len, kv_heads * d], in the layout of x, by definition (of 4 bits
// by the row's own functions, which tests/kernels/kv/int4_rows_test.cpp holds against theirs).
Tensor quantized_by_hand(const Case& c, const Tensor& x, DType cache) {
  const int64_t d = c.args.head_dim;
  Tensor out = to_f32(x);
  for (int64_t row = 0; row < out.numel() / d; ++row) {
    float* v = out.as<float>() + row * d;
    if (cache == DType::u8) {
      std::vector<uint8_t> codes(static_cast<size_t>(d / 2));
      std::vector<Int4Scale> scales(static_cast<size_t>(int4_groups(d)));
      cpu::int4_row(v, d, codes.data(), scales.data());
      cpu::widen_int4_row(codes.data(), scales.data(), v, d);
      continue;
    }
    float amax = 0;
    for (int64_t i = 0; i < d; ++i) amax = std::max(amax, std::fabs(v[i]));
    const float f8_scale = 0.01f * static_cast<float>(3 + row % c.args.kv_heads);
    for (int64_t i = 0; i < d; ++i)
      v[i] = cache == DType::i8 ? static_cast<float>(std::nearbyint(v[i] * (127.f / amax))) * (amax / 127.f)
                                : f8_e4m3_to_f32(f32_to_f8_e4m3_saturated(v[i] / f8_scale)) * f8_scale;
  }
  return out;
}

TEST_P(AttentionOn, OverCodesIsAttentionOverTheirValues) {
  Exec ex = exec();
  for (const DType dtype : kComputeTypes)
    for (const DType codes : {DType::f8_e4m3, DType::i8, DType::u8}) {
      const Inputs in = inputs(c(), dtype);
      const Inputs values{to_f32(in.q), quantized_by_hand(c(), in.k, codes), quantized_by_hand(c(), in.v, codes)};
      const Tensor expected = from_doubles(expected_attention(c(), values), in.q.shape());
      for (const int64_t step : {c().len, int64_t{7}, int64_t{1}}) {
        if (step == 1 && c().len > 64) continue;  // slow, and shorter sequences cover it
        const Cache cache = make_cache(ex, codes, cache_shape(c()));
        const Tensor found = from_doubles(through_cache(ex, c(), in, cache, step), in.q.shape());
        EXPECT_LE(relative_error(found, expected), product_tolerance(dtype))
            << name_of(dtype) << " over " << name_of(codes) << " in steps of " << step;
      }
    }
}

#ifdef FEWBIT_HAS_CUDA
TEST_P(AttentionOn, OlderHardwareToo) {
  if (device() != "cuda") GTEST_SKIP() << "kernels of older hardware are a matter of CUDA";
  if (c().len <= 64) GTEST_SKIP() << "so short a sequence takes one path on every hardware";
  Exec ex = exec();
  cuda::force_sm80_path(ex, true);
  const Inputs in = inputs(c(), DType::bf16);
  const Tensor out = poisoned(ex, DType::bf16, in.q.shape());
  attention(ex, ex.to_device(in.q), ex.to_device(in.k), ex.to_device(in.v), c().seqs, c().args, out);
  EXPECT_LE(error_of(ex, out, expected_attention(c(), in)), tol::kBf16Op);
}

// Calibration and the chunks of a prompt ask for the same rows among different neighbours.
TEST(Attention, CudaARowsBitsDoNotDependOnTheRowsAroundIt) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Case c{2, 399, {.heads = 4, .kv_heads = 2, .head_dim = 128, .scale = 0.088f}};
  const Inputs in = inputs(c, DType::bf16);
  const Cache cache = make_cache(ex, DType::bf16, cache_shape(c));
  const std::vector<double> whole = through_cache(ex, c, in, cache, c.len);
  for (const int64_t step : {133, 200})  // every part has more rows than the kernel of few takes
    EXPECT_EQ(through_cache(ex, c, in, cache, step), whole) << "in steps of " << step;
  const Tensor out = poisoned(ex, DType::bf16, in.q.shape());
  attention(ex, ex.to_device(in.q), ex.to_device(in.k), ex.to_device(in.v), c.seqs, c.args, out);
  EXPECT_EQ(doubles(ex.to_host(out)), whole) << "without a cache";
}
#endif

// So many keys that every split of the GPU's launch has several tiles of them for each of its warps; `last` new tokens.
void check_last_tokens(Exec& ex, const Case& c, int64_t last) {
  const int64_t first = c.len - last, cols = c.args.heads * c.args.head_dim;
  const Inputs in = inputs(c, DType::bf16);
  std::vector<int32_t> positions(static_cast<size_t>(c.len));
  std::iota(positions.begin(), positions.end(), 0);
  for (const DType held : {DType::bf16, DType::f8_e4m3, DType::i8, DType::u8}) {
    const Cache cache = make_cache(ex, held, cache_shape(c));
    kv_append(ex, ex.to_device(in.k), ex.to_device(in.v), ex.to_device(host_i32(positions)), cache.view());
    const Tensor q = ex.to_device(token_rows(in.q, 1, first, c.len)),
                 at = ex.to_device(host_i32({positions.begin() + first, positions.end()}));
    const Tensor found = poisoned(ex, DType::bf16, {last, cols}), again = poisoned(ex, DType::bf16, {last, cols});
    attention_cached(ex, q, at, cache.view(), c.args, found);
    attention_cached(ex, q, at, cache.view(), c.args, again);
    EXPECT_EQ(first_difference(ex.to_host(found), ex.to_host(again)), "") << name_of(held);
    const bool codes = held != DType::bf16;
    const std::vector<double> queries = doubles(in.q),
                              k = doubles(codes ? quantized_by_hand(c, in.k, held) : to_f32(in.k)),
                              v = doubles(codes ? quantized_by_hand(c, in.v, held) : to_f32(in.v));
    std::vector<double> all(queries.size());
    for (int64_t p = first; p < c.len; ++p)
      for (int64_t h = 0; h < c.args.heads; ++h) attend(c, queries, k, v, 0, h, p, all);
    EXPECT_LE(error_of(ex, found, {all.begin() + first * cols, all.end()}), tol::kBf16Op)
        << name_of(held) << ", head_dim " << c.args.head_dim;
  }
}
FEWBIT_DEVICE_TEST(Attention, TheLastTokensOfALongContext) {
  check_last_tokens(ex, {1, 25000, {.heads = 4, .kv_heads = 1, .head_dim = 64, .scale = 0.125f}}, 2);
  check_last_tokens(ex, {1, 9001, {.heads = 4, .kv_heads = 1, .head_dim = 128, .scale = 0.088f, .window = 5000}}, 3);
  check_last_tokens(ex, {1, 6007, {.heads = 2, .kv_heads = 1, .head_dim = 256, .scale = 0.06f}}, 1);
  check_last_tokens(ex, {1, 130, {.heads = 4, .kv_heads = 2, .head_dim = 512, .scale = 0.04f}}, 5);
}

FEWBIT_DEVICE_TEST(KvAppend, PutsEachTokenAtItsOwnPosition) {
  const Tensor k = random_normal(DType::bf16, {2, 32}, 1), v = random_normal(DType::bf16, {2, 32}, 2);
  const Tensor k_cache = ex.alloc_zeros(DType::bf16, {2, 2, 4, 16}),
               v_cache = ex.alloc_zeros(DType::bf16, {2, 2, 4, 16});
  kv_append(ex, ex.to_device(k), ex.to_device(v), ex.to_device(host_i32({3, 1})), {k_cache, v_cache});
  const std::vector<double> found = doubles(ex.to_host(k_cache)), source = doubles(k);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t p = 0; p < 4; ++p)
        for (int64_t i = 0; i < 16; ++i)
          EXPECT_EQ(found[static_cast<size_t>(((b * 2 + h) * 4 + p) * 16 + i)],
                    p == (b == 0 ? 3 : 1) ? source[static_cast<size_t>(b * 32 + h * 16 + i)] : 0.0);
}

// Two tokens of two heads of 16; head 1 of token 0 is all zeros, one value lies far above FP8's range.
Tensor awkward_rows() {
  Tensor x = random_normal(DType::bf16, {2, 32}, 1);
  for (int64_t i = 16; i < 32; ++i) x.as<bf16>()[i] = 0.f;
  x.as<bf16>()[33] = 1e6f;
  return x;
}

FEWBIT_DEVICE_TEST(KvAppend, CodesAreThoseOfTheDefinition) {
  const Tensor x = awkward_rows();
  for (const DType codes : {DType::f8_e4m3, DType::i8}) {
    const Cache cache = make_cache(ex, codes, {1, 2, 3, 16});
    kv_append(ex, ex.to_device(x), ex.to_device(x), ex.to_device(host_i32({2, 0})), cache.view());
    const Tensor found = ex.to_host(cache.v), scales = ex.to_host(cache.v_scales);
    for (int64_t t = 0; t < 2; ++t)
      for (int64_t h = 0; h < 2; ++h) {
        const bf16* row = x.as<bf16>() + t * 32 + h * 16;
        const int64_t at = h * 3 + (t == 0 ? 2 : 0);
        float amax = 0;
        for (int64_t i = 0; i < 16; ++i) amax = std::max(amax, std::fabs(static_cast<float>(row[i])));
        if (codes == DType::i8) {
          EXPECT_EQ(scales.as<float>()[at], amax / 127.f);
        }
        const float inverse = amax > 0 ? 127.f / amax : 0.f;
        for (int64_t i = 0; i < 16; ++i) {
          const uint8_t byte = found.as<uint8_t>()[at * 16 + i];
          if (codes == DType::i8) {
            EXPECT_EQ(static_cast<int8_t>(byte), static_cast<int8_t>(std::nearbyint(row[i] * inverse)));
          } else {
            EXPECT_EQ(byte, f32_to_f8_e4m3_saturated(row[i] / scales.as<float>()[h]));
          }
        }
      }
  }
}

}  // namespace
}  // namespace fewbit::test
