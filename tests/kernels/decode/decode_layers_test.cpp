#include "kernels/decode/decode_layers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "tests/kernels/decode/layer_runs.h"

namespace fewbit::test {
namespace {

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
    // Clusters share what n tiles are left over, of all four products; warps cannot have equally many k tiles.
    {.hidden = 5120, .inner = 6400, .heads = 24, .kv_heads = 8, .head_dim = 128, .layers = 2},
};

const Sizes kZeroSizes[] = {
    {.hidden = 256, .inner = 512, .heads = 4, .kv_heads = 2, .head_dim = 64, .zeros = true},
    {.hidden = 256, .inner = 640, .heads = 4, .kv_heads = 1, .head_dim = 128, .biases = true, .zeros = true},
    {.hidden = 4096, .inner = 14336, .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = 2, .zeros = true},
    {.hidden = 5120, .inner = 6400, .heads = 24, .kv_heads = 8, .head_dim = 128, .layers = 2, .zeros = true},
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
    {.hidden = 5120, .inner = 6400, .heads = 24, .kv_heads = 8, .head_dim = 128, .layers = 2, .bytes = true},
};

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
