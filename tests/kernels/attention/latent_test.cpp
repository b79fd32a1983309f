// Latent attention against its definition in double: over the tokens at hand, and over the cache in pieces, where the
// weights of keys and values are taken into queries and outputs; with all keys and with chosen ones. The choice of
// keys.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/attention/cache_rows.h"
#include "kernels/attention/key_choice.h"
#include "kernels/attention/latent_attention.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Case {
  int64_t seqs, len, heads, nope, rope, value, rank, chosen;  // chosen 0: all keys
};

constexpr Case kCases[] = {{2, 7, 2, 8, 4, 6, 12, 0},        {1, 33, 3, 16, 8, 16, 24, 0},
                           {2, 9, 2, 8, 4, 12, 16, 3},       {1, 40, 9, 32, 16, 32, 64, 11},
                           {1, 150, 4, 24, 8, 32, 40, 0},    {3, 21, 5, 16, 16, 8, 130, 6},
                           {1, 20, 2, 128, 64, 128, 512, 0}, {2, 140, 66, 8, 64, 8, 512, 0}};

struct Tensors {
  Tensor nope, rope, latent, k_rope, w, kv, chosen;
  std::vector<double> expected;  // [tokens, heads, value]
};

// Of every query some keys up to its own, the own among them, in rising order; then -1.
Tensor some_keys(const Case& c) {
  Tensor t = Tensor::host(DType::i32, {c.seqs * c.len, c.chosen});
  for (int64_t row = 0; row < t.rows(); ++row) {
    const int64_t p = row % c.len;
    int32_t* to = t.as<int32_t>() + row * c.chosen;
    std::fill_n(to, c.chosen, -1);
    for (int64_t j = 0, n = std::min(c.chosen, p + 1); j < n; ++j)
      to[j] = static_cast<int32_t>(p - (n - 1 - j) * (p / std::max<int64_t>(1, c.chosen) + (p >= c.chosen ? 0 : 1)));
    if (p < c.chosen) std::iota(to, to + p + 1, 0);
  }
  return t;
}

// `change`: what happens to the latents before anything is made of them.
Tensors make(
    const Case& c, DType dtype, const std::function<void(Tensor&)>& change = [](Tensor&) {}) {
  const int64_t tokens = c.seqs * c.len, each = c.nope + c.value;
  Tensors t;
  t.nope = random_normal(dtype, {tokens, c.heads * c.nope}, 1);
  t.rope = random_normal(dtype, {tokens, c.heads * c.rope}, 2);
  t.latent = random_normal(dtype, {tokens, c.rank}, 3);
  change(t.latent);
  t.k_rope = random_normal(dtype, {tokens, c.rope}, 4);
  t.w = random_normal(dtype, {c.heads * each, c.rank}, 5);
  if (c.chosen > 0) t.chosen = some_keys(c);
  const std::vector<double> nope = doubles(t.nope), rope = doubles(t.rope), latent = doubles(t.latent),
                            turned = doubles(t.k_rope), w = doubles(t.w);
  std::vector<double> kv(at(tokens * c.heads * each));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t o = 0; o < c.heads * each; ++o)
      for (int64_t r = 0; r < c.rank; ++r)
        kv[at(row * c.heads * each + o)] += latent[at(row * c.rank + r)] * w[at(o * c.rank + r)];
  t.kv = Tensor::host(dtype, {tokens, c.heads * each});
  for (size_t i = 0; i < kv.size(); ++i) {
    if (dtype == DType::f32)
      t.kv.as<float>()[i] = static_cast<float>(kv[i]);
    else
      t.kv.as<bf16>()[i] = static_cast<float>(kv[i]);
  }
  t.expected.assign(at(tokens * c.heads * c.value), 0);
  const double scale = 1 / std::sqrt(static_cast<double>(c.rank * c.nope + c.rope));
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t first = row / c.len * c.len, p = row % c.len;
      std::vector<int64_t> keys;
      for (int64_t j = 0; j < (c.chosen > 0 ? c.chosen : p + 1); ++j)
        if (const int64_t key = c.chosen > 0 ? t.chosen.as<int32_t>()[row * c.chosen + j] : j; key >= 0)
          keys.push_back(key);
      std::vector<double> weights;
      for (const int64_t j : keys) {
        double s = 0;
        for (int64_t i = 0; i < c.nope; ++i)
          s += nope[at((row * c.heads + h) * c.nope + i)] * kv[at(((first + j) * c.heads + h) * each + i)];
        for (int64_t i = 0; i < c.rope; ++i)
          s += rope[at((row * c.heads + h) * c.rope + i)] * turned[at((first + j) * c.rope + i)];
        weights.push_back(s * scale);
      }
      const double top = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& x : weights) sum += x = std::exp(x - top);
      for (size_t j = 0; j < keys.size(); ++j)
        for (int64_t i = 0; i < c.value; ++i)
          t.expected[at((row * c.heads + h) * c.value + i)] +=
              weights[j] / sum * kv[at(((first + keys[j]) * c.heads + h) * each + c.nope + i)];
    }
  return t;
}

LatentArgs args_of(const Case& c) {
  return {.heads = static_cast<int>(c.heads),
          .nope = c.nope,
          .rope = c.rope,
          .value = c.value,
          .rank = c.rank,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.rank * c.nope + c.rope)))};
}

// Values that a product of `rank` bf16 numbers rounded, and scores of a few of those.
double tolerance(DType dtype) { return dtype == DType::f32 ? tol::kF32Product : tol::kLatentBf16; }

FEWBIT_DEVICE_TEST(LatentAttention, OverTheTokensAtHand) {
  for (const Case& c : kCases)
    for (const DType dtype : kComputeTypes) {
      const Tensors t = make(c, dtype);
      const Tensor nope = ex.to_device(t.nope), rope = ex.to_device(t.rope);
      const Tensor chosen = c.chosen > 0 ? ex.to_device(t.chosen) : Tensor{};
      const Tensor out = poisoned(ex, dtype, {c.seqs * c.len, c.heads * c.value});
      LatentQueries q{.nope = nope, .rope = rope};
      if (c.chosen > 0) q.chosen = chosen;
      latent_attention(ex, q, ex.to_device(t.kv), ex.to_device(t.k_rope), c.seqs, args_of(c), out);
      EXPECT_LE(error_of(ex, out, t.expected), tolerance(dtype)) << c.len << " " << c.rank << " " << name_of(dtype);
    }
}

// `codes`: the latents go through E4M3 on their way; what is expected then has the values of the codes.
void over_the_cache_in_pieces(Exec& ex, bool codes) {
  const RowQuant rounding{.codes = DType::f8_e4m3, .group = kLatentGroup};
  Exec host = Exec::cpu();
  for (const Case& c : kCases)
    for (const DType dtype : kComputeTypes) {
      const Tensors t = make(c, dtype, [&](Tensor& latent) {
        if (codes) round_rows(host, latent, rounding, latent);
      });
      const int64_t capacity = c.len + 5;
      const Tensor latent = poisoned(ex, codes ? DType::f8_e4m3 : dtype, {c.seqs, capacity, c.rank}),
                   scales = poisoned(ex, DType::f32, {c.seqs, capacity, latent_groups(c.rank)}),
                   k_rope = poisoned(ex, dtype, {c.seqs, capacity, c.rope}), w = ex.to_device(t.w);
      const Tensor expected = from_doubles(t.expected, {c.seqs * c.len, c.heads * c.value});
      for (int64_t begin = 0, n = 3; begin < c.len; begin += n, n = begin % 2 == 0 ? 1 : 4) {
        const int64_t end = std::min(begin + n, c.len), rows = c.seqs * (end - begin);
        std::vector<int32_t> where;
        for (int64_t i = 0; i < rows; ++i) where.push_back(static_cast<int32_t>(begin + i % (end - begin)));
        const Tensor positions = ex.to_device(host_i32(where));
        const auto part = [&](const Tensor& x) { return ex.to_device(piece(x, c.seqs, begin, end)); };
        const Tensor own = part(t.latent);
        if (codes) {
          const Tensor rounded = ex.alloc(DType::f8_e4m3, own.shape()),
                       by = ex.alloc(DType::f32, {rows, latent_groups(c.rank)});
          quantize_rows(ex, own, rounding, rounded, by);
          cache_rows(ex, rounded, positions, latent);
          cache_rows(ex, by, positions, scales);
        } else {
          cache_rows(ex, own, positions, latent);
        }
        cache_rows(ex, part(t.k_rope), positions, k_rope);
        const Tensor nope = part(t.nope), rope = part(t.rope), chosen = c.chosen > 0 ? part(t.chosen) : Tensor{};
        const Tensor out = poisoned(ex, dtype, {rows, c.heads * c.value});
        LatentQueries q{.nope = nope, .rope = rope};
        if (c.chosen > 0) q.chosen = chosen;
        latent_attention_cached(ex, q, w, positions,
                                {.latent = latent, .k_rope = k_rope, .scales = codes ? scales.view() : TensorView{}},
                                args_of(c), out);
        EXPECT_LE(relative_error(ex.to_host(out), piece(expected, c.seqs, begin, end)), tolerance(dtype))
            << begin << " of " << c.len << " " << c.rank << " " << name_of(dtype);
      }
    }
}

FEWBIT_DEVICE_TEST(LatentAttention, OverTheCacheInPieces) { over_the_cache_in_pieces(ex, false); }

// A row of values of codes is its own rounding, but for the scale's last bit.
FEWBIT_DEVICE_TEST(LatentAttention, OverACacheOfCodes) { over_the_cache_in_pieces(ex, true); }

// One token of each sequence, and caches of several tiles of a GPU's kernel, whose splits have one tile or all of them,
// in blocks of their own or in pairs; past the own position there is nothing but NaN.
FEWBIT_DEVICE_TEST(LatentAttention, OverLongCaches) {
  constexpr int64_t kCapacity = 450, kSplit = 1, kFew = 3, kWhole = 67;
  for (const auto& [seqs, heads] : {std::pair{kSplit, 130}, {kSplit, 128}, {kFew, 300}, {kWhole, 2}, {kWhole, 66}}) {
    const LatentArgs args{.heads = heads, .nope = 16, .rope = 64, .value = 24, .rank = 512, .scale = 0.02f};
    const auto normal = [](Shape shape, uint64_t seed) { return random_normal(DType::bf16, shape, seed); };
    const Tensor nope = normal({seqs, heads * args.nope}, 1), rope = normal({seqs, heads * args.rope}, 2),
                 latent = normal({seqs, kCapacity, args.rank}, 3), k_rope = normal({seqs, kCapacity, args.rope}, 4),
                 w = normal({heads * (args.nope + args.value), args.rank}, 5);
    std::vector<int32_t> where;
    for (int64_t s = 0; s < seqs; ++s) {
      where.push_back(static_cast<int32_t>(kCapacity - 1 - s * 41 % kCapacity));
      const int64_t first = s * kCapacity + where.back() + 1, end = (s + 1) * kCapacity;
      std::fill(latent.as<bf16>() + first * args.rank, latent.as<bf16>() + end * args.rank, bf16(NAN));
      std::fill(k_rope.as<bf16>() + first * args.rope, k_rope.as<bf16>() + end * args.rope, bf16(NAN));
    }
    const Tensor positions = host_i32(where);
    const auto attend = [&](Exec& on) {
      const Tensor out = poisoned(on, DType::bf16, {seqs, heads * args.value});
      const Tensor q = on.to_device(nope), turned = on.to_device(rope), c = on.to_device(latent),
                   k = on.to_device(k_rope);
      latent_attention_cached(on, {.nope = q, .rope = turned}, on.to_device(w), on.to_device(positions), {c, k}, args,
                              out);
      return on.to_host(out);
    };
    Exec cpu = Exec::cpu();
    EXPECT_LE(relative_error(attend(ex), attend(cpu)), tol::kLatentBf16) << seqs << " x " << heads;
  }
}

struct Choice {
  int64_t seqs, len, keys, heads, d, n;
};

FEWBIT_DEVICE_TEST(KeyChoice, TheLargestScoresInRisingOrder) {
  for (const DType dtype : kComputeTypes)
    for (const Choice c : {Choice{2, 5, 9, 3, 8, 2}, Choice{1, 40, 40, 8, 32, 12}, Choice{1, 3, 700, 4, 16, 300},
                           Choice{2, 4, 4, 2, 8, 6}, Choice{1, 2, 5, 64, 128, 1}}) {
      // Whole numbers: sums are exact, and ties are many.
      const auto whole = [&](Shape shape, uint64_t seed, double spread) {
        const std::vector<double> x = doubles(random_normal(DType::f32, shape, seed));
        Tensor t = Tensor::host(dtype, shape);
        for (size_t i = 0; i < x.size(); ++i) {
          const auto v = static_cast<float>(std::round(spread * x[i]));
          if (dtype == DType::f32)
            t.as<float>()[i] = v;
          else
            t.as<bf16>()[i] = v;
        }
        return t;
      };
      const Tensor q = whole({c.seqs * c.len, c.heads * c.d}, 1, 1), k = whole({c.seqs, c.keys, c.d}, 2, 1),
                   weights = whole({c.seqs * c.len, c.heads}, 3, 2);
      std::vector<int32_t> where;
      for (int64_t t = 0; t < c.seqs * c.len; ++t) where.push_back(static_cast<int32_t>(c.keys - c.len + t % c.len));
      const Tensor chosen = ex.alloc(DType::i32, {c.seqs * c.len, c.n});
      choose_keys(ex, ex.to_device(q), ex.to_device(k), ex.to_device(weights), ex.to_device(host_i32(where)), 1,
                  chosen);
      const Tensor found = ex.to_host(chosen);
      const std::vector<double> dq = doubles(q), dk = doubles(k), dw = doubles(weights);
      for (int64_t t = 0; t < c.seqs * c.len; ++t) {
        const int64_t s = t / c.len, count = where[at(t)] + 1;
        std::vector<double> scores(at(count));
        for (int64_t j = 0; j < count; ++j)
          for (int64_t h = 0; h < c.heads; ++h) {
            double dot = 0;
            for (int64_t i = 0; i < c.d; ++i)
              dot += dq[at((t * c.heads + h) * c.d + i)] * dk[at((s * c.keys + j) * c.d + i)];
            scores[at(j)] += dw[at(t * c.heads + h)] * std::max(0., dot);
          }
        std::vector<int32_t> order(at(count));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return scores[at(a)] > scores[at(b)]; });
        order.resize(at(std::min(count, c.n)));
        std::sort(order.begin(), order.end());
        order.resize(at(c.n), -1);
        const int32_t* row = found.as<int32_t>() + t * c.n;
        EXPECT_EQ(std::vector<int32_t>(row, row + c.n), order) << "query " << t << " of " << c.keys;
      }
    }
}

}  // namespace
}  // namespace fewbit::test
