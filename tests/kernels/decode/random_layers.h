#pragma once
// Random decoder layers on a device.
#include <cmath>

#include "formats/packing.h"
#include "kernels/grids/f8_grid.h"
#include "src/core/rng.h"
#include "tests/kernels/decode/layer_sizes.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {

// Random layers on one device; the same values on every device.
struct Layers {
  std::vector<Tensor> kept;
  std::vector<DecodeLayer> layers;
  DecodeForm form;
  Exec& ex;
  bool bytes;
  float fixed;
  bool zeros;
  int part, parts;

  // The part of a matrix whose columns stand for `group` inputs each.
  Tensor cut(const Tensor& t, Cut by, int64_t group = 1) const {
    const int64_t rows = t.shape()[0], columns = t.shape()[1], in = columns * group;
    const auto at = [&](int64_t n, int p) { return n * p / parts; };
    if (by == Cut::rows) return block_of(t, at(rows, part), at(rows, part + 1), 0, columns);
    if (by == Cut::columns) return block_of(t, 0, rows, at(in, part) / group, at(in, part + 1) / group);
    return clone_host(t);
  }
  Tensor& keep(Tensor host) { return kept.emplace_back(ex.to_device(host)); }
  DecodeLinear linear(int64_t out, int64_t in, uint64_t seed, Cut by = Cut::nothing) {
    if (bytes) return byte_linear(out, in, seed, by);
    return packed_linear(out, in, seed, 128, by);
  }
  ByteView byte_linear(int64_t out, int64_t in, uint64_t seed, Cut by) {
    constexpr float kTop = 4.5f;  // of the normal values that become codes
    constexpr int kDraws = 4096;  // of a normal distribution; each code is one of them
    const Tensor values = random_normal(DType::f32, {kDraws}, 1, kF8Max / kTop);
    std::vector<uint8_t> draws;
    for (int i = 0; i < kDraws; ++i) draws.push_back(f8_code(values.as<float>()[i]));
    Tensor codes = Tensor::host(DType::f8_e4m3, {out, in}), scales = Tensor::host(DType::f32, {out, 1});
    Rng rng(seed, "codes");
    for (int64_t i = 0; i < out * in; ++i) codes.as<uint8_t>()[i] = draws[rng.below(kDraws)];
    for (int64_t o = 0; o < out; ++o)
      scales.as<float>()[o] =
          static_cast<float>((0.5 + rng.uniform()) * kTop / kF8Max / std::sqrt(static_cast<double>(in)));
    const Tensor own = cut(scales, by == Cut::rows ? by : Cut::nothing);
    return {.w = {.codes = keep(cut(codes, by)), .scales = keep(clone_host(own.view().reshaped({own.numel()})))},
            .input = {.codes = DType::f8_e4m3, .fixed = fixed}};
  }
  MarlinView packed_linear(int64_t out, int64_t in, uint64_t seed, int64_t group = 128, Cut by = Cut::nothing) {
    QuantizedLinear q;
    q.spec = {.bits = 4, .group = group, .symmetric = !zeros};
    Rng rng(seed, "codes");
    q.codes = Tensor::host(DType::u8, {out, in});
    for (int64_t i = 0; i < out * in; ++i) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(16));
    q.scales = Tensor::host(DType::f32, {out, in / group});
    const double size = 0.2 / std::sqrt(static_cast<double>(in));
    for (int64_t i = 0; i < q.scales.numel(); ++i)
      q.scales.as<float>()[i] =
          round_to_f16(static_cast<float>(size * (0.5 + rng.uniform())) * (i % 5 == 0 ? -1.f : 1.f));
    if (zeros) {
      q.zeros = Tensor::host(DType::u8, {out, in / group});
      for (int64_t i = 0; i < q.zeros->numel(); ++i) q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(16));
    }
    q.codes = cut(q.codes, by), q.scales = cut(q.scales, by, group);
    if (zeros) q.zeros = cut(*q.zeros, by, group);
    MarlinView v{.bits = 4, .out = q.codes.shape()[0], .in = q.codes.shape()[1]};
    for (const NamedTensor& t : packing_marlin.pack("w", q).tensors)
      (t.name == "w.B" ? v.b : t.name == "w.s" ? v.s : v.z) = keep(clone_host(t.tensor));
    return v;
  }
  DecodeMixture mixture(const Sizes& s, uint64_t seed) {
    DecodeMixture m{.router = keep(random_normal(DType::bf16, {s.experts, s.hidden}, seed,
                                                 2 / std::sqrt(static_cast<float>(s.hidden))))};
    for (int e = 0; e < s.experts; ++e) {
      const auto own = seed + 10000 * static_cast<uint64_t>(e + 1);
      m.gate.push_back(linear(s.inner, s.hidden, own + 1));
      m.up.push_back(linear(s.inner, s.hidden, own + 2));
      m.down.push_back(linear(s.hidden, s.inner, own + 3));
    }
    return m;
  }
  ConstTensorView vector(int64_t n, uint64_t seed, float around, Cut by = Cut::nothing) {
    Tensor t = random_normal(DType::f32, {n}, seed, 0.1f);
    Tensor rounded = Tensor::host(DType::bf16, {n, 1});
    for (int64_t i = 0; i < n; ++i) rounded.as<bf16>()[i] = bf16(t.as<float>()[i] + around);
    const Tensor own = cut(rounded, by);
    return keep(clone_host(own.view().reshaped({own.numel()})));
  }

  Layers(Exec& e, const Sizes& s, int64_t capacity)
      : ex(e), bytes(s.bytes), fixed(s.fixed), zeros(s.zeros), part(s.part), parts(s.parts) {
    Tensor freq = Tensor::host(DType::f32, {s.head_dim / 2});
    for (int64_t i = 0; i < freq.numel(); ++i)
      freq.as<float>()[i] = std::pow(1e4f, -static_cast<float>(i) / static_cast<float>(freq.numel()));
    form = {.attention = {.heads = s.heads / s.parts,
                          .kv_heads = s.kv_heads / s.parts,
                          .head_dim = s.head_dim,
                          .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                          .window = s.window},
            .rope = {.inv_freq = keep(std::move(freq)), .attention_scale = 1.1f, .hadamard = s.hadamard},
            .eps = 1e-5f,
            .head_eps = 1e-6f,
            .top_k = s.top_k,
            .renormalise = s.renormalise,
            .scaling = s.renormalise ? 1 : 2.5f,
            .attention_apart = s.apart};
    for (int i = 0; i < s.layers; ++i) {
      const auto seed = [&](int n) { return static_cast<uint64_t>(100 * i + n); };
      const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
      DecodeLayer l{.input_norm = vector(s.hidden, seed(1), 1), .middle_norm = vector(s.hidden, seed(2), 1)};
      l.q = linear(q, s.hidden, seed(3), Cut::rows);
      l.k = linear(kv, s.hidden, seed(4), Cut::rows);
      l.v = linear(kv, s.hidden, seed(5), Cut::rows);
      l.o = linear(s.hidden, q, seed(6), Cut::columns);
      if (s.experts > 0)
        l.mixture = mixture(s, seed(20));
      else
        l.gate = linear(s.inner, s.hidden, seed(7), Cut::rows), l.up = linear(s.inner, s.hidden, seed(8), Cut::rows),
        l.down = linear(s.hidden, s.inner, seed(9), Cut::columns);
      if (s.biases)
        l.q_bias = vector(q, seed(10), 0, Cut::rows), l.k_bias = vector(kv, seed(11), 0, Cut::rows),
        l.v_bias = vector(kv, seed(12), 0, Cut::rows);
      if (s.head_norms) l.q_norm = vector(s.head_dim, seed(13), 1), l.k_norm = vector(s.head_dim, seed(14), 1);
      const int64_t kv_heads = s.kv_heads / s.parts;
      const Shape shape = {1, kv_heads, capacity, s.head_dim};
      l.cache = {.k = kept.emplace_back(ex.alloc_zeros(s.cache, shape)),
                 .v = kept.emplace_back(ex.alloc_zeros(s.cache, shape))};
      if (s.cache == DType::i8) {
        const Shape scales = {1, kv_heads, capacity};
        l.cache.k_scales = kept.emplace_back(ex.alloc_zeros(DType::f32, scales));
        l.cache.v_scales = kept.emplace_back(ex.alloc_zeros(DType::f32, scales));
      } else if (s.cache == DType::f8_e4m3) {
        Tensor scales = Tensor::host(DType::f32, {kv_heads});
        for (int64_t h = 0; h < kv_heads; ++h)
          scales.as<float>()[h] = 0.02f + 0.01f * static_cast<float>(s.part * kv_heads + h);
        l.cache.k_scales = keep(clone_host(scales));
        l.cache.v_scales = keep(clone_host(scales));
      }
      layers.push_back(l);
    }
  }
};

}  // namespace fewbit::test
