#include "kernels/decode/decode_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "formats/packing.h"
#include "kernels/grids/f8_grid.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Sizes {
  int64_t hidden, inner;
  int heads, kv_heads;
  int64_t head_dim;
  bool biases = false, head_norms = false, hadamard = false;
  int64_t window = 0;
  DType cache = DType::bf16;
  int layers = 3;
  bool bytes = false;  // E4M3 weights and inputs, else packed
  float fixed = 0;     // scale of the inputs; 0: one of their own
  bool zeros = false;  // packed with zero points
  bool apart = false;  // DecodeForm::attention_apart
};

// Random layers on one device; the same values on every device.
struct Layers {
  std::vector<Tensor> kept;
  std::vector<DecodeLayer> layers;
  DecodeForm form;
  Exec& ex;
  bool bytes;
  float fixed;
  bool zeros;

  Tensor& keep(Tensor host) { return kept.emplace_back(ex.to_device(host)); }
  DecodeLinear linear(int64_t out, int64_t in, uint64_t seed) {
    if (bytes) return byte_linear(out, in, seed);
    return packed_linear(out, in, seed);
  }
  ByteView byte_linear(int64_t out, int64_t in, uint64_t seed) {
    constexpr float kTop = 4.5f;  // of the normal values that become codes
    constexpr int kDraws = 4096;  // of a normal distribution; each code is one of them
    const Tensor values = random_normal(DType::f32, {kDraws}, 1, kF8Max / kTop);
    std::vector<uint8_t> draws;
    for (int i = 0; i < kDraws; ++i) draws.push_back(f8_code(values.as<float>()[i]));
    Tensor codes = Tensor::host(DType::f8_e4m3, {out, in}), scales = Tensor::host(DType::f32, {out});
    Rng rng(seed, "codes");
    for (int64_t i = 0; i < out * in; ++i) codes.as<uint8_t>()[i] = draws[rng.below(kDraws)];
    for (int64_t o = 0; o < out; ++o)
      scales.as<float>()[o] =
          static_cast<float>((0.5 + rng.uniform()) * kTop / kF8Max / std::sqrt(static_cast<double>(in)));
    return {.w = {.codes = keep(std::move(codes)), .scales = keep(std::move(scales))},
            .input = {.codes = DType::f8_e4m3, .fixed = fixed}};
  }
  MarlinView packed_linear(int64_t out, int64_t in, uint64_t seed, int64_t group = 128) {
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
    MarlinView v{.bits = 4, .out = out, .in = in};
    for (const NamedTensor& t : packing_marlin.pack("w", q).tensors)
      (t.name == "w.B" ? v.b : t.name == "w.s" ? v.s : v.z) = keep(clone_host(t.tensor));
    return v;
  }
  ConstTensorView vector(int64_t n, uint64_t seed, float around) {
    Tensor t = random_normal(DType::f32, {n}, seed, 0.1f);
    Tensor rounded = Tensor::host(DType::bf16, {n});
    for (int64_t i = 0; i < n; ++i) rounded.as<bf16>()[i] = bf16(t.as<float>()[i] + around);
    return keep(std::move(rounded));
  }

  Layers(Exec& e, const Sizes& s, int64_t capacity) : ex(e), bytes(s.bytes), fixed(s.fixed), zeros(s.zeros) {
    kept.reserve(static_cast<size_t>(s.layers) * 64);  // views stay valid
    Tensor freq = Tensor::host(DType::f32, {s.head_dim / 2});
    for (int64_t i = 0; i < freq.numel(); ++i)
      freq.as<float>()[i] = std::pow(1e4f, -static_cast<float>(i) / static_cast<float>(freq.numel()));
    form = {.attention = {.heads = s.heads,
                          .kv_heads = s.kv_heads,
                          .head_dim = s.head_dim,
                          .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                          .window = s.window},
            .rope = {.inv_freq = keep(std::move(freq)), .attention_scale = 1.1f, .hadamard = s.hadamard},
            .eps = 1e-5f,
            .head_eps = 1e-6f,
            .attention_apart = s.apart};
    for (int i = 0; i < s.layers; ++i) {
      const auto seed = [&](int n) { return static_cast<uint64_t>(100 * i + n); };
      const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
      DecodeLayer l{.input_norm = vector(s.hidden, seed(1), 1), .middle_norm = vector(s.hidden, seed(2), 1)};
      l.q = linear(q, s.hidden, seed(3));
      l.k = linear(kv, s.hidden, seed(4));
      l.v = linear(kv, s.hidden, seed(5));
      l.o = linear(s.hidden, q, seed(6));
      l.gate = linear(s.inner, s.hidden, seed(7));
      l.up = linear(s.inner, s.hidden, seed(8));
      l.down = linear(s.hidden, s.inner, seed(9));
      if (s.biases)
        l.q_bias = vector(q, seed(10), 0), l.k_bias = vector(kv, seed(11), 0), l.v_bias = vector(kv, seed(12), 0);
      if (s.head_norms) l.q_norm = vector(s.head_dim, seed(13), 1), l.k_norm = vector(s.head_dim, seed(14), 1);
      const Shape shape = {1, s.kv_heads, capacity, s.head_dim};
      l.cache = {.k = kept.emplace_back(ex.alloc_zeros(s.cache, shape)),
                 .v = kept.emplace_back(ex.alloc_zeros(s.cache, shape))};
      if (s.cache == DType::i8) {
        const Shape scales = {1, s.kv_heads, capacity};
        l.cache.k_scales = kept.emplace_back(ex.alloc_zeros(DType::f32, scales));
        l.cache.v_scales = kept.emplace_back(ex.alloc_zeros(DType::f32, scales));
      } else if (s.cache == DType::f8_e4m3) {
        Tensor scales = Tensor::host(DType::f32, {s.kv_heads});
        for (int64_t h = 0; h < s.kv_heads; ++h) scales.as<float>()[h] = 0.02f + 0.01f * static_cast<float>(h);
        l.cache.k_scales = keep(clone_host(scales));
        l.cache.v_scales = keep(clone_host(scales));
      }
      layers.push_back(l);
    }
  }
};

struct Outcome {
  std::vector<Tensor> x;  // after every step
  Tensor keys;            // of the last layer, as bytes or bf16
};
Outcome run(Exec& ex, const Sizes& s, const std::vector<int32_t>& positions) {
  Layers l(ex, s, positions.back() + 1);
  const DecodeStack stack = make_stack(ex, l.layers, l.form);
  Outcome out;
  for (const int32_t p : positions) {
    const Tensor x = ex.to_device(random_normal(DType::bf16, {1, s.hidden}, static_cast<uint64_t>(p) + 7));
    decode_layers(ex, stack, ex.to_device(host_i32({p})), x);
    out.x.push_back(ex.to_host(x));
  }
  out.keys = ex.to_host(l.layers.back().cache.k);
  return out;
}

const Sizes kSizes[] = {
    {.hidden = 256, .inner = 512, .heads = 4, .kv_heads = 2, .head_dim = 64},
    {.hidden = 256, .inner = 640, .heads = 4, .kv_heads = 1, .head_dim = 128, .biases = true},
    {.hidden = 512, .inner = 768, .heads = 8, .kv_heads = 1, .head_dim = 64, .head_norms = true},
    {.hidden = 1024, .inner = 1536, .heads = 14, .kv_heads = 2, .head_dim = 128, .window = 5},
    {.hidden = 256,
     .inner = 512,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 128,
     .hadamard = true,
     .cache = DType::f8_e4m3},
    {.hidden = 256, .inner = 512, .heads = 6, .kv_heads = 2, .head_dim = 64, .cache = DType::i8},
    {.hidden = 4096, .inner = 14336, .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = 2},
    {.hidden = 5120, .inner = 25600, .heads = 64, .kv_heads = 8, .head_dim = 128, .head_norms = true, .layers = 1},
};

const Sizes kZeroSizes[] = {
    {.hidden = 256, .inner = 512, .heads = 4, .kv_heads = 2, .head_dim = 64, .zeros = true},
    {.hidden = 256, .inner = 640, .heads = 4, .kv_heads = 1, .head_dim = 128, .biases = true, .zeros = true},
    {.hidden = 4096, .inner = 14336, .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = 2, .zeros = true},
};

const Sizes kByteSizes[] = {
    {.hidden = 256, .inner = 512, .heads = 4, .kv_heads = 2, .head_dim = 64, .bytes = true},
    {.hidden = 256,
     .inner = 640,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 128,
     .biases = true,
     .bytes = true,
     .fixed = 0.02f},
    {.hidden = 512, .inner = 768, .heads = 8, .kv_heads = 1, .head_dim = 64, .head_norms = true, .bytes = true},
    {.hidden = 1024, .inner = 1536, .heads = 14, .kv_heads = 2, .head_dim = 128, .window = 5, .bytes = true},
    {.hidden = 256,
     .inner = 512,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 128,
     .hadamard = true,
     .cache = DType::f8_e4m3,
     .bytes = true},
    {.hidden = 256, .inner = 512, .heads = 6, .kv_heads = 2, .head_dim = 64, .cache = DType::i8, .bytes = true},
    {.hidden = 4096, .inner = 14336, .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = 2, .bytes = true},
};

void expect_near(const Outcome& found, const Outcome& expected, const Sizes& s) {
  const double limit = s.bytes ? tol::kLogitsBytesBf16 : tol::kLogitsBf16;
  const std::string what = fmt::format("hidden {}, head_dim {}, apart {}", s.hidden, s.head_dim, s.apart);
  for (size_t i = 0; i < found.x.size(); ++i)
    EXPECT_LE(relative_error(found.x[i], expected.x[i]), limit) << what << ", step " << i;
  if (s.cache != DType::bf16) return;
  EXPECT_LE(relative_error(to_f32(found.keys), to_f32(expected.keys)), limit) << what;
}

Outcome run_apart(Exec& ex, Sizes s, const std::vector<int32_t>& positions) {
  s.apart = true;
  return run(ex, s, positions);
}

// In one launch and with attention apart.
void expect_the_ops_values(std::span<const Sizes> sizes, const std::vector<int32_t>& positions) {
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  for (Sizes s : sizes) {
    const Outcome expected = run(cpu, s, positions);
    expect_near(run(gpu, s, positions), expected, s);
    expect_near(run_apart(gpu, s, positions), expected, s);
  }
}

TEST(DecodeLayers, CudaEqualsTheOpsOneByOne) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(kSizes, {0, 1, 2, 3, 4, 5, 6, 7});
}

TEST(DecodeLayers, CudaEqualsTheOpsOnZeroPoints) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(kZeroSizes, {0, 1, 2, 3, 4, 5, 6, 7});
}

TEST(DecodeLayers, CudaEqualsTheOpsOnBytes) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(kByteSizes, {0, 1, 2, 3, 4, 5, 6, 7});
}

// The first launch of a layer is also the last but one.
TEST(DecodeLayers, CudaTakesOneLayerWithAttentionApart) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  for (Sizes s : {kSizes[2], kByteSizes[4]}) {
    s.layers = 1;
    expect_near(run_apart(gpu, s, {0, 1, 2, 3}), run(cpu, s, {0, 1, 2, 3}), s);
  }
}

// In one layer few codes fall on the other side of a tie, in half of the steps next to none: a scale or a rounding in
// another place would move all of them.
TEST(DecodeLayers, CudaRoundsBytesWhereTheOpsDo) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  const std::vector<int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
  for (Sizes s : kByteSizes) {
    s.layers = 1;
    const Outcome expected = run(cpu, s, positions), found = run(gpu, s, positions);
    std::vector<double> errors;
    for (size_t i = 0; i < positions.size(); ++i) errors.push_back(relative_error(found.x[i], expected.x[i]));
    std::sort(errors.begin(), errors.end());
    EXPECT_LE(errors[positions.size() / 2 - 1], tol::kBf16Op) << "hidden " << s.hidden << ", head_dim " << s.head_dim;
    EXPECT_LE(errors.back(), tol::kLogitsBytesBf16) << "hidden " << s.hidden << ", head_dim " << s.head_dim;
    if (s.cache != DType::bf16) continue;
    EXPECT_LE(relative_error(to_f32(found.keys), to_f32(expected.keys)), tol::kBf16Op) << "hidden " << s.hidden;
  }
}

// Small enough for compute-sanitizer's racecheck.
TEST(DecodeLayers, CudaEqualsTheOpsOnSmallLayers) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(std::span(kSizes).first(2), {0, 1});
}
TEST(DecodeLayers, CudaEqualsTheOpsOnSmallZeroPoints) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(std::span(kZeroSizes).first(2), {0, 1});
}
TEST(DecodeLayers, CudaEqualsTheOpsOnSmallBytes) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(std::span(kByteSizes).first(2), {0, 1});
}

// Many positions: the runs of keys have more than one round, and a window cuts them.
TEST(DecodeLayers, CudaReadsALongCache) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  Sizes s = kSizes[0];
  s.layers = 1;
  std::vector<int32_t> positions;
  for (int32_t p = 0; p < 700; ++p) positions.push_back(p);
  for (const int64_t window : {0, 300}) {
    s.window = window;
    const Outcome expected = run(cpu, s, positions), found = run(gpu, s, positions);
    const Outcome apart = run_apart(gpu, s, positions);
    for (const size_t i : {size_t{64}, size_t{333}, size_t{699}})
      for (const Outcome* o : {&found, &apart})
        EXPECT_LE(relative_error(o->x[i], expected.x[i]), tol::kLogitsBf16)
            << "position " << i << ", window " << window;
  }
}

// A value a thousand times the others: what shares its power of two (in bytes, its scale) keeps its worth, and a NaN
// does not get lost.
TEST(DecodeLayers, CudaTakesOutliersAndPassesNaNOn) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  const auto result = [](Exec& ex, Sizes s, float value) {
    s.layers = 1;
    Layers l(ex, s, 1);
    Tensor x = random_normal(DType::bf16, {1, s.hidden}, 3);
    x.as<bf16>()[17] = bf16(value);
    const Tensor on_device = ex.to_device(x);
    decode_layers(ex, make_stack(ex, l.layers, l.form), ex.to_device(host_i32({0})), on_device);
    Tensor out = to_f32(ex.to_host(on_device));
    if (std::isfinite(value)) out.as<float>()[17] = 0;  // or it outweighs all others in the comparison
    return out;
  };
  int stacks = 0;
  for (Sizes s : {kSizes[0], kByteSizes[0], kSizes[0], kByteSizes[0]}) {
    s.apart = ++stacks > 2;
    EXPECT_LE(relative_error(result(gpu, s, 1000), result(cpu, s, 1000)),
              s.bytes ? tol::kLogitsBytesBf16 : tol::kLogitsBf16);
    const Tensor lost = result(gpu, s, std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < lost.numel(); ++i) EXPECT_TRUE(std::isnan(lost.as<float>()[i])) << i;
  }
}

TEST(DecodeLayers, CudaTwoRunsGiveTheSameBits) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const auto expect_the_same = [](const Outcome& a, const Outcome& b, const Sizes& s) {
    for (size_t i = 0; i < a.x.size(); ++i) EXPECT_EQ(first_difference(a.x[i], b.x[i]), "") << s.hidden;
    EXPECT_EQ(first_difference(a.keys, b.keys), "") << s.hidden;
  };
  for (const Sizes& s : {kSizes[3], kSizes[6], kByteSizes[3], kByteSizes[6]}) {
    expect_the_same(run(ex, s, {0, 1, 2}), run(ex, s, {0, 1, 2}), s);
    expect_the_same(run_apart(ex, s, {0, 1, 2}), run_apart(ex, s, {0, 1, 2}), s);
  }
}

TEST(DecodeLayers, CudaSaysWhatItHasNoKernelFor) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  Layers l(ex, kSizes[0], 8);
  EXPECT_EQ(refuses_stack(ex, l.layers, l.form), "");
  DecodeForm capped = l.form;
  capped.attention.softcap = 30;
  EXPECT_NE(refuses_stack(ex, l.layers, capped), "");
  capped.attention_apart = true;
  EXPECT_NE(refuses_stack(ex, l.layers, capped), "");
  DecodeForm apart = l.form;
  apart.attention_apart = true;
  EXPECT_EQ(refuses_stack(ex, l.layers, apart), "");
  DecodeForm gelu = l.form;
  gelu.act = ActKind::gelu_tanh;
  EXPECT_NE(refuses_stack(ex, l.layers, gelu), "");
  std::vector<DecodeLayer> two_sequences = l.layers;
  for (DecodeLayer& each : two_sequences) each.cache.k.shape = each.cache.v.shape = {2, 2, 8, 64};
  EXPECT_EQ(refuses_stack(ex, two_sequences, l.form), "one sequence only");
  Layers fine(ex, kSizes[0], 8);
  fine.layers[0].down = fine.packed_linear(256, 512, 3, 64);
  EXPECT_NE(refuses_stack(ex, fine.layers, fine.form), "");
  const ConstTensorView zeros = std::get<MarlinView>(l.layers[1].up).z;
  std::get<MarlinView>(l.layers[1].up).z = l.layers[1].input_norm;  // one linear with zero points among others without
  EXPECT_NE(refuses_stack(ex, l.layers, l.form), "");
  std::get<MarlinView>(l.layers[1].up).z = zeros;
  EXPECT_EQ(refuses_stack(ex, l.layers, l.form), "");
  std::get<MarlinView>(l.layers[1].up).bits = 8;
  EXPECT_NE(refuses_stack(ex, l.layers, l.form), "");
}

TEST(DecodeLayers, CudaSaysWhichBytesItHasNoKernelFor) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Layers l(ex, kByteSizes[0], 8);
  EXPECT_EQ(refuses_stack(ex, l.layers, l.form), "");
  const auto refused = [&](auto&& change) {
    std::vector<DecodeLayer> layers = l.layers;
    change(layers[1]);
    return refuses_stack(ex, layers, l.form) != "";
  };
  EXPECT_TRUE(refused([](DecodeLayer& x) { x.up = MarlinView{.out = out_of(x.up), .in = in_of(x.up)}; }));
  EXPECT_TRUE(refused([](DecodeLayer& x) { std::get<ByteView>(x.o).input.codes = DType::i8; }));
  EXPECT_TRUE(refused([](DecodeLayer& x) { std::get<ByteView>(x.down).input.group = 128; }));
  EXPECT_TRUE(refused([](DecodeLayer& x) { std::get<ByteView>(x.k).input.fixed = 0.5f; }));
}

}  // namespace
}  // namespace fewbit::test
