// A cache of KIVI's form: codes by their definition, attention against the definition in double for every way that a
// sequence may come, and the same bits for all of them on the CPU.
#include <algorithm>
#include <cmath>

#include "kernels/kivi/kivi_append.h"
#include "kernels/kivi/kivi_attention.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct KiviCase {
  int64_t seqs, len;
  int bits;
  AttentionArgs args;
  bool sinks = false;
};

std::vector<KiviCase> kivi_cases() {
  std::vector<KiviCase> out;
  const auto add = [&](int64_t seqs, int64_t len, int heads, int kv_heads, int64_t dim) -> KiviCase& {
    out.push_back(
        {seqs,
         len,
         out.size() % 2 == 0 ? 2 : 4,
         {.heads = heads, .kv_heads = kv_heads, .head_dim = dim, .scale = 1 / std::sqrt(static_cast<float>(dim))}});
    return out.back();
  };
  add(1, 290, 4, 2, 64);
  add(2, 290, 4, 2, 64);
  add(1, 200, 2, 1, 32);
  add(2, 161, 3, 3, 32);
  add(1, 225, 6, 2, 96);
  add(1, 330, 4, 1, 128);
  add(1, 200, 2, 1, 256);
  add(1, 190, 1, 1, 320);
  add(1, 90, 2, 2, 64);  // all of it in the window
  add(1, 300, 2, 1, 64).args.window = 200;
  add(1, 300, 2, 1, 64).args.window = 20;
  add(1, 280, 4, 2, 64).args.softcap = 4;
  add(1, 300, 2, 1, 64).args.chunk = 170;
  add(1, 250, 4, 2, 64).sinks = true;
  return out;
}

class KiviAttentionOn : public CasesOnDevices<KiviCase> {};

std::string kivi_case_name(const testing::TestParamInfo<KiviAttentionOn::ParamType>& info) {
  const auto& [c, device] = info.param;
  std::string s = "seqs" + std::to_string(c.seqs) + "_len" + std::to_string(c.len) + "_heads" +
                  std::to_string(c.args.heads) + "of" + std::to_string(c.args.kv_heads) + "_dim" +
                  std::to_string(c.args.head_dim) + "_bits" + std::to_string(c.bits);
  if (c.args.window > 0) s += "_window" + std::to_string(c.args.window);
  if (c.args.softcap > 0) s += "_capped";
  if (c.args.chunk > 0) s += "_chunk" + std::to_string(c.args.chunk);
  return s + (c.sinks ? "_sinks_" : "_") + device;
}
INSTANTIATE_TEST_SUITE_P(Cases, KiviAttentionOn, testing::Combine(testing::ValuesIn(kivi_cases()), every_device()),
                         kivi_case_name);

struct KiviRows {
  Tensor q, k, v;
};
KiviRows kivi_rows(const KiviCase& c, DType dtype) {
  const int64_t tokens = c.seqs * c.len, kv = c.args.kv_heads * c.args.head_dim;
  return {random_normal(dtype, {tokens, c.args.heads * c.args.head_dim}, 1, 2.f),
          random_normal(dtype, {tokens, kv}, 2, 2.f), random_normal(dtype, {tokens, kv}, 3)};
}

// 32 values, `step` apart, as the codes of their group say them.
void code_by_hand(float* x, int64_t step, int bits) {
  float low = x[0], high = x[0];
  for (int64_t i = 0; i < 32; ++i) low = std::min(low, x[i * step]), high = std::max(high, x[i * step]);
  const auto levels = static_cast<float>((1 << bits) - 1);
  const float zero = bf16(low), scale = bf16((high - zero) / levels);
  for (int64_t i = 0; i < 32; ++i)
    x[i * step] = zero + scale * std::nearbyint(std::clamp((x[i * step] - zero) * (1 / scale), 0.f, levels));
}

// Keys, or values, as codes say them, in the layout of x [seqs * len, kv_heads * d]: of keys the whole groups alone.
std::vector<double> coded_by_hand(const KiviCase& c, const Tensor& x, bool keys) {
  const Tensor t = to_f32(x);
  const int64_t cols = x.cols();
  for (int64_t s = 0; s < c.seqs; ++s) {
    float* rows = t.as<float>() + s * c.len * cols;
    if (keys)
      for (int64_t group = 0; group < c.len / 32; ++group)
        for (int64_t i = 0; i < cols; ++i) code_by_hand(rows + group * 32 * cols + i, cols, c.bits);
    else
      for (int64_t i = 0; i < c.len * cols; i += 32) code_by_hand(rows + i, 1, c.bits);
  }
  return doubles(t);
}

struct KiviTruth {
  std::vector<double> q, k, v, k_coded, v_coded, sinks;
};

// out of one query of one head, by the definition: a token is codes where the last of its group of 32 is at least 128
// behind the query.
void attend_by_hand(const KiviCase& c, const KiviTruth& in, int64_t seq, int64_t head, int64_t p,
                    std::vector<double>& out) {
  const AttentionArgs& a = c.args;
  const int64_t d = a.head_dim, q_cols = a.heads * d, kv_cols = a.kv_heads * d, kv = head / (a.heads / a.kv_heads);
  const auto coded = [&](int64_t j) { return j / 32 * 32 + 31 + 128 <= p; };
  const auto kv_at = [&](int64_t j) { return static_cast<size_t>((seq * c.len + j) * kv_cols + kv * d); };
  const auto q_at = static_cast<size_t>((seq * c.len + p) * q_cols + head * d);
  const int64_t first = a.chunk > 0 ? p / a.chunk * a.chunk : a.window > 0 ? std::max<int64_t>(0, p - a.window + 1) : 0;
  std::vector<double> weights;
  double top = c.sinks ? in.sinks[static_cast<size_t>(head)] : -1e300;
  for (int64_t j = first; j <= p; ++j) {
    const double* key = (coded(j) ? in.k_coded : in.k).data() + kv_at(j);
    double score = 0;
    for (int64_t i = 0; i < d; ++i) score += in.q[q_at + static_cast<size_t>(i)] * key[i];
    score *= a.scale;
    if (a.softcap > 0) score = a.softcap * std::tanh(score / a.softcap);
    weights.push_back(score);
    top = std::max(top, score);
  }
  double sum = c.sinks ? std::exp(in.sinks[static_cast<size_t>(head)] - top) : 0;
  for (double& w : weights) sum += w = std::exp(w - top);
  for (int64_t j = first; j <= p; ++j) {
    const double* value = (coded(j) ? in.v_coded : in.v).data() + kv_at(j);
    for (int64_t i = 0; i < d; ++i)
      out[q_at + static_cast<size_t>(i)] += weights[static_cast<size_t>(j - first)] / sum * value[i];
  }
}

Tensor kivi_sinks(const KiviCase& c) {
  return c.sinks ? random_normal(DType::f32, {c.args.heads}, 4) : Tensor::host(DType::f32, {c.args.heads});
}

std::vector<double> attention_by_hand(const KiviCase& c, const KiviRows& in) {
  const KiviTruth truth{
      doubles(in.q),         doubles(in.k), doubles(in.v), coded_by_hand(c, in.k, true), coded_by_hand(c, in.v, false),
      doubles(kivi_sinks(c))};
  std::vector<double> out(truth.q.size());
  for (int64_t s = 0; s < c.seqs; ++s)
    for (int64_t h = 0; h < c.args.heads; ++h)
      for (int64_t p = 0; p < c.len; ++p) attend_by_hand(c, truth, s, h, p, out);
  return out;
}

// Poisoned, so that a row which nobody wrote shows.
struct KiviTensors {
  Tensor k, v, k_scales, v_scales, k_recent, v_recent;
  int bits = 2;
  KiviCache view() const { return {bits, k, v, k_scales, v_scales, k_recent, v_recent}; }
};
KiviTensors kivi_tensors(Exec& ex, const KiviCase& c, DType dtype, int64_t pass) {
  const int64_t heads = c.args.kv_heads, d = c.args.head_dim, capacity = kivi_capacity(c.len + 5);
  const auto codes = [&] { return poisoned(ex, DType::u8, {c.seqs, heads, capacity, d * c.bits / 8}); };
  const auto recent = [&] { return poisoned(ex, dtype, {c.seqs, heads, kivi_ring(capacity, pass), d}); };
  return {codes(),
          codes(),
          poisoned(ex, DType::bf16, {c.seqs, heads, capacity / 32, 2 * d}),
          poisoned(ex, DType::bf16, {c.seqs, heads, capacity, d / 16}),
          recent(),
          recent(),
          c.bits};
}

// The sequences `step` tokens at a time, in the order of attention(), on the host.
Tensor through_kivi(Exec& ex, const KiviCase& c, const KiviRows& in, const KiviTensors& cache, int64_t step) {
  const int64_t row = in.q.bytes() / in.q.rows();
  Tensor out = Tensor::host(in.q.dtype(), in.q.shape());
  AttentionArgs args = c.args;
  const Tensor sinks = ex.to_device(kivi_sinks(c));
  if (c.sinks) args.sinks = sinks;
  for (int64_t begin = 0; begin < c.len; begin += step) {
    const int64_t end = std::min(c.len, begin + step), n = end - begin;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < c.seqs * n; ++i) positions.push_back(static_cast<int32_t>(begin + i % n));
    const Tensor p = ex.to_device(host_i32(positions));
    kivi_append(ex, ex.to_device(piece(in.k, c.seqs, begin, end)), ex.to_device(piece(in.v, c.seqs, begin, end)), p,
                cache.view());
    const Tensor part = poisoned(ex, in.q.dtype(), {c.seqs * n, in.q.cols()});
    kivi_attention(ex, ex.to_device(piece(in.q, c.seqs, begin, end)), p, cache.view(), args, part);
    const Tensor host = ex.to_host(part);
    for (int64_t s = 0; s < c.seqs; ++s)
      std::memcpy(static_cast<char*>(out.view().data) + (s * c.len + begin) * row,
                  static_cast<const char*>(host.view().data) + s * n * row, static_cast<size_t>(n * row));
  }
  return out;
}

TEST_P(KiviAttentionOn, IsAttentionOverWhatTheCacheHoldsForEachQuery) {
  Exec ex = exec();
  const KiviCase& c = the_case();
  for (const DType dtype : kComputeTypes) {
    const KiviRows in = kivi_rows(c, dtype);
    const Tensor expected = from_doubles(attention_by_hand(c, in), in.q.shape());
    for (const int64_t step : {c.len, int64_t{37}, int64_t{1}}) {
      const Tensor found = through_kivi(ex, c, in, kivi_tensors(ex, c, dtype, step), step);
      EXPECT_LE(relative_error(found, expected), product_tolerance(dtype)) << name_of(dtype) << " in steps of " << step;
    }
  }
}

TEST_P(KiviAttentionOn, OnePassChunksAndStepsLeaveTheSameBits) {
  if (device() == "cuda") GTEST_SKIP() << "a promise of the CPU alone";
  Exec ex = exec();
  const KiviCase& c = the_case();
  for (const DType dtype : kComputeTypes) {
    const KiviRows in = kivi_rows(c, dtype);
    const KiviTensors whole = kivi_tensors(ex, c, dtype, c.len);
    const Tensor expected = through_kivi(ex, c, in, whole, c.len);
    for (const int64_t step : {150, 64, 32, 7, 1}) {
      const KiviTensors cache = kivi_tensors(ex, c, dtype, step);
      EXPECT_EQ(first_difference(through_kivi(ex, c, in, cache, step), expected), "") << name_of(dtype) << ", " << step;
      for (const auto& [a, b] : {std::pair{&cache.k, &whole.k}, {&cache.v, &whole.v}})
        EXPECT_EQ(std::memcmp(a->view().data, b->view().data, static_cast<size_t>(a->bytes())), 0) << step;
    }
  }
}

// Three sequences of different content beside each other, against each alone.
TEST(KiviAttention, ASequenceHasTheBitsThatItHasAlone) {
  Exec ex = Exec::cpu();
  const KiviCase three{3, 200, 2, {.heads = 4, .kv_heads = 2, .head_dim = 64, .scale = 0.125f}};
  KiviCase one = three;
  one.seqs = 1;
  const KiviRows in = kivi_rows(three, DType::bf16);
  const Tensor together = through_kivi(ex, three, in, kivi_tensors(ex, three, DType::bf16, 50), 50);
  for (int64_t s = 0; s < 3; ++s) {
    const auto own = [&](const Tensor& t) {
      Tensor rows = Tensor::host(t.dtype(), {200, t.cols()});
      std::memcpy(rows.view().data, t.view().row_range(200 * s, 200 * (s + 1)).data, static_cast<size_t>(rows.bytes()));
      return rows;
    };
    const Tensor alone =
        through_kivi(ex, one, {own(in.q), own(in.k), own(in.v)}, kivi_tensors(ex, one, DType::bf16, 9), 9);
    EXPECT_EQ(first_difference(alone, own(together)), "") << s;
  }
}

TEST(KiviAttention, AQuerySeesItsLast128To159TokensAsTheyAre) {
  int64_t least = 1000, most = 0;
  for (int64_t p = 0; p < 1000; ++p) {
    const int64_t coded = kivi_coded(p), recent = p + 1 - coded;
    EXPECT_EQ(coded % kKiviGroup, 0);
    if (coded == 0) {
      EXPECT_LE(recent, 159) << p;
      continue;
    }
    EXPECT_GE(p - (coded - 1), kKiviWindow) << p;
    least = std::min(least, recent), most = std::max(most, recent);
  }
  EXPECT_EQ(least, 128);
  EXPECT_EQ(most, 159);
}

// Groups of one value, and of zeros, are that value; one with a number that is none shows it.
FEWBIT_DEVICE_TEST(KiviAppend, GroupsOfOneValueAndOfNumbersThatAreNone) {
  const KiviCase c{1, 32, 2, {.heads = 1, .kv_heads = 1, .head_dim = 64}};
  const Tensor k = Tensor::host(DType::f32, {32, 64}), v = Tensor::host(DType::f32, {32, 64});
  std::fill_n(k.as<float>(), k.numel(), 0.f);
  for (int64_t t = 0; t < 32; ++t) k.as<float>()[t * 64 + 3] = -1.5f;
  k.as<float>()[5 * 64 + 7] = INFINITY;
  for (int64_t i = 0; i < v.numel(); ++i) v.as<float>()[i] = i / 32 % 2 == 0 ? 0.75f : NAN;
  const KiviTensors cache = kivi_tensors(ex, c, DType::f32, 32);
  std::vector<int32_t> positions(32);
  for (int32_t i = 0; i < 32; ++i) positions[static_cast<size_t>(i)] = i;
  kivi_append(ex, ex.to_device(k), ex.to_device(v), ex.to_device(host_i32(positions)), cache.view());
  const std::vector<double> keys = doubles(ex.to_host(cache.k_scales)), values = doubles(ex.to_host(cache.v_scales));
  for (size_t channel = 0; channel < 64; ++channel) {
    const double scale = keys[2 * channel], zero = keys[2 * channel + 1];
    if (channel == 7) {
      EXPECT_TRUE(std::isnan(scale) && std::isnan(zero));
    } else {
      EXPECT_EQ(scale, 0);
      EXPECT_EQ(zero, channel == 3 ? -1.5 : 0);
    }
  }
  for (size_t token = 0; token < 32; ++token) {
    EXPECT_EQ(values[4 * token], 0);
    EXPECT_EQ(values[4 * token + 1], 0.75);
    EXPECT_TRUE(std::isnan(values[4 * token + 2]) && std::isnan(values[4 * token + 3]));
  }
}

TEST(KiviAppend, CudaLeavesTheBitsOfTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  for (const int bits : {2, 4})
    for (const DType dtype : kComputeTypes) {
      const KiviCase c{2, 256, bits, {.heads = 2, .kv_heads = 2, .head_dim = 96, .scale = 0.1f}};
      const KiviRows in = kivi_rows(c, dtype);
      const KiviTensors expected = kivi_tensors(cpu, c, dtype, 64), found = kivi_tensors(gpu, c, dtype, 64);
      through_kivi(cpu, c, in, expected, 64);
      through_kivi(gpu, c, in, found, 64);
      for (const auto& [a, b] : {std::pair{&found.k, &expected.k},
                                 {&found.v, &expected.v},
                                 {&found.k_scales, &expected.k_scales},
                                 {&found.v_scales, &expected.v_scales},
                                 {&found.k_recent, &expected.k_recent}}) {
        const Tensor host = gpu.to_host(*a);
        EXPECT_EQ(std::memcmp(host.view().data, b->view().data, static_cast<size_t>(b->bytes())), 0)
            << bits << " bits, " << name_of(dtype);
      }
    }
}

}  // namespace
}  // namespace fewbit::test
