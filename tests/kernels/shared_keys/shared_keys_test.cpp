// Keys of blocks of tokens and attention over shared keys against references in double, whole and in pieces.
#include <algorithm>
#include <cmath>

#include "kernels/attention/key_choice.h"
#include "kernels/shared_keys/compress_keys.h"
#include "kernels/shared_keys/shared_key_attention.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

Tensor positions_of(int64_t seqs, int64_t begin, int64_t end) {
  std::vector<int32_t> where;
  for (int64_t s = 0; s < seqs; ++s)
    for (int64_t p = begin; p < end; ++p) where.push_back(static_cast<int32_t>(p));
  return host_i32(where);
}

struct Blocks {
  int64_t seqs, len, every, d;
  bool overlap;
};

std::vector<double> keys_of(const Blocks& c, const Tensor& offer, const Tensor& gate, const Tensor& ape,
                            const Tensor& norm, const Tensor& inv_freq, double eps) {
  const std::vector<double> o = doubles(offer), g = doubles(gate), a = doubles(ape), w = doubles(norm),
                            f = doubles(inv_freq);
  const int64_t width = offer.cols();
  std::vector<double> out(at(c.seqs * c.len * c.d), 0.);
  for (int64_t s = 0; s < c.seqs; ++s)
    for (int64_t p = c.every - 1; p < c.len; p += c.every) {
      const int64_t first = p + 1 - c.every, begin = std::max<int64_t>(0, c.overlap ? first - c.every : first);
      double* key = out.data() + (s * c.len + p) * c.d;
      double squares = 0;
      for (int64_t i = 0; i < c.d; ++i) {
        double sum = 0;
        for (int64_t j = begin; j <= p; ++j) {
          const int64_t col = i + (c.overlap && j >= first ? c.d : 0), row = (s * c.len + j) * width;
          const double weight = std::exp(g[at(row + col)] + a[at(j % c.every * width + col)]);
          sum += weight;
          key[i] += weight * o[at(row + col)];
        }
        key[i] /= sum;
        squares += key[i] * key[i];
      }
      for (int64_t i = 0; i < c.d; ++i) key[i] *= w[at(i)] / std::sqrt(squares / static_cast<double>(c.d) + eps);
      for (int64_t i = 0; i < c.d / 2; ++i) {
        const double angle = static_cast<double>(first) * f[at(i)], u = key[2 * i], v = key[2 * i + 1];
        key[2 * i] = u * std::cos(angle) - v * std::sin(angle);
        key[2 * i + 1] = v * std::cos(angle) + u * std::sin(angle);
      }
    }
  return out;
}

FEWBIT_DEVICE_TEST(CompressKeys, WholeAndInPieces) {
  for (const DType dtype : kComputeTypes)
    for (const Blocks c : {Blocks{2, 21, 4, 8, true}, Blocks{1, 17, 8, 32, false}, Blocks{3, 9, 1, 6, true}}) {
      const int64_t width = c.overlap ? 2 * c.d : c.d;
      const Shape tokens = {c.seqs * c.len, width};
      const Tensor offer = random_normal(dtype, tokens, 1), gate = random_normal(dtype, tokens, 2),
                   ape = random_normal(DType::f32, {c.every, width}, 3), norm = random_normal(dtype, {c.d}, 4);
      const Tensor freq = Tensor::host(DType::f32, {c.d / 2});
      for (int64_t i = 0; i < c.d / 2; ++i) freq.as<float>()[i] = i == 0 ? 0.f : 0.3f / static_cast<float>(i);
      const CompressArgs args{.every = c.every, .overlap = c.overlap, .eps = 1e-6f};
      const Tensor dape = ex.to_device(ape), dnorm = ex.to_device(norm), dfreq = ex.to_device(freq);
      const auto run = [&](int64_t begin, int64_t end, TensorView tail) {
        const Tensor out = poisoned(ex, dtype, {c.seqs * (end - begin), c.d});
        const Tensor o = ex.to_device(piece(offer, c.seqs, begin, end)),
                     g = ex.to_device(piece(gate, c.seqs, begin, end));
        compress_keys(ex, {.offer = o, .gate = g, .ape = dape, .norm = dnorm, .inv_freq = dfreq},
                      ex.to_device(positions_of(c.seqs, begin, end)), c.seqs, args, tail, out);
        return ex.to_host(out);
      };
      const Tensor whole = run(0, c.len, {});
      const std::vector<double> expected = keys_of(c, offer, gate, ape, norm, freq, 1e-6);
      EXPECT_LE(relative_error(whole, from_doubles(expected, whole.shape())), op_tolerance(dtype)) << c.every;
      const Tensor tail = ex.alloc_zeros(dtype, {c.seqs, args.members(), 2 * width});
      for (int64_t begin = 0, n = 1; begin < c.len; begin += n, n = n % 7 + 2) {
        const int64_t end = std::min(begin + n, c.len);
        EXPECT_EQ(first_difference(run(begin, end, tail), piece(whole, c.seqs, begin, end)), "")
            << c.every << " " << begin;
      }
    }
}

struct Sight {
  int64_t seqs, len, window, every, d, chosen;  // chosen 0: all; every 0: no far keys
  int heads;
};

FEWBIT_DEVICE_TEST(SharedKeyAttention, NearAndFarKeysAndSinks) {
  for (const DType dtype : kComputeTypes)
    for (const Sight c : {Sight{2, 30, 6, 4, 16, 0, 3}, Sight{1, 40, 5, 4, 32, 3, 4}, Sight{2, 9, 20, 0, 8, 0, 1}}) {
      const Tensor q = random_normal(dtype, {c.seqs * c.len, c.heads * c.d}, 1),
                   keys = random_normal(dtype, {c.seqs, c.len, c.d}, 2),
                   far = random_normal(dtype, {c.seqs, c.len, c.d}, 3), sinks = random_normal(DType::f32, {c.heads}, 4);
      const int64_t every = std::max<int64_t>(1, c.every);
      std::vector<int32_t> chosen;
      for (int64_t t = 0; t < c.seqs * c.len; ++t)
        for (int64_t i = 0; i < c.chosen; ++i) {  // the last blocks
          const int64_t complete = (t % c.len + 1) / every, b = complete - std::min(complete, c.chosen) + i;
          chosen.push_back(b < complete ? static_cast<int32_t>(b) : -1);
        }
      const Tensor dq = ex.to_device(q), dk = ex.to_device(keys), df = ex.to_device(far),
                   dc = ex.to_device(Tensor::host_from<int32_t>(
                       DType::i32, {c.seqs * c.len, std::max<int64_t>(1, c.chosen)},
                       c.chosen > 0 ? chosen : std::vector<int32_t>(at(c.seqs * c.len), -1)));
      SharedKeys k{.keys = dk};
      if (c.every > 0) k.far = df;
      if (c.chosen > 0) k.chosen = dc;
      const Tensor out = poisoned(ex, dtype, q.shape());
      shared_key_attention(ex, dq, k, ex.to_device(sinks), ex.to_device(positions_of(c.seqs, 0, c.len)),
                           {.heads = c.heads, .scale = 0.4f, .window = c.window, .every = every}, out);
      const std::vector<double> vq = doubles(q), vk = doubles(keys), vf = doubles(far), vs = doubles(sinks);
      std::vector<double> expected(vq.size(), 0.);
      for (int64_t t = 0; t < c.seqs * c.len; ++t)
        for (int64_t h = 0; h < c.heads; ++h) {
          const int64_t p = t % c.len, first = t / c.len * c.len, row = (t * c.heads + h) * c.d;
          double sum = std::exp(vs[at(h)]);
          const auto see = [&](const std::vector<double>& from, int64_t key) {
            double dot = 0;
            for (int64_t i = 0; i < c.d; ++i) dot += vq[at(row + i)] * from[at((first + key) * c.d + i)];
            const double weight = std::exp(0.4f * dot);
            sum += weight;
            for (int64_t i = 0; i < c.d; ++i) expected[at(row + i)] += weight * from[at((first + key) * c.d + i)];
          };
          for (int64_t j = std::max<int64_t>(0, p + 1 - c.window); j <= p; ++j) see(vk, j);
          const int64_t complete = c.every > 0 ? (p + 1) / every : 0;
          for (int64_t b = c.chosen > 0 ? std::max<int64_t>(0, complete - c.chosen) : 0; b < complete; ++b)
            see(vf, b * every + every - 1);
          for (int64_t i = 0; i < c.d; ++i) expected[at(row + i)] /= sum;
        }
      EXPECT_LE(error_of(ex, out, expected), product_tolerance(dtype)) << c.window << " " << name_of(dtype);
    }
}

// Blocks are chosen as keys are that stand in a row of their own; a query before the first has none.
FEWBIT_DEVICE_TEST(KeyChoice, OfBlocksIsThatOfTheirKeys) {
  const int64_t len = 50, every = 4, heads = 3, d = 8, n = 5, blocks = len / every;
  const Tensor q = random_normal(DType::f32, {len, heads * d}, 1), k = random_normal(DType::f32, {1, len, d}, 2),
               weights = random_normal(DType::f32, {len, heads}, 3);
  Tensor dense = Tensor::host(DType::f32, {1, blocks, d});
  for (int64_t b = 0; b < blocks; ++b)
    std::copy_n(k.as<float>() + (b * every + every - 1) * d, d, dense.as<float>() + b * d);
  const Tensor found = poisoned(ex, DType::i32, {len, n}), expected = ex.alloc(DType::i32, {len - every + 1, n});
  const Tensor dq = ex.to_device(q), dw = ex.to_device(weights);
  choose_keys(ex, dq, ex.to_device(k), dw, ex.to_device(positions_of(1, 0, len)), every, found);
  std::vector<int32_t> last;
  for (int64_t p = every - 1; p < len; ++p) last.push_back(static_cast<int32_t>((p + 1) / every - 1));
  choose_keys(ex, dq.view().row_range(every - 1, len), ex.to_device(dense), dw.view().row_range(every - 1, len),
              ex.to_device(host_i32(last)), 1, expected);
  const Tensor host = ex.to_host(found);
  for (int64_t i = 0; i < (every - 1) * n; ++i) EXPECT_EQ(host.as<int32_t>()[i], -1);
  EXPECT_EQ(first_difference(host.view().row_range(every - 1, len), ex.to_host(expected)), "");
}

}  // namespace
}  // namespace fewbit::test
