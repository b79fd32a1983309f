// Mixtures of experts in one launch for all layers, against the CPU's ops one after another.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "tests/kernels/decode/layer_runs.h"

namespace fewbit::test {
namespace {

const Sizes kMixtures[] = {
    {.hidden = 256, .inner = 256, .heads = 2, .kv_heads = 1, .head_dim = 128, .experts = 4, .top_k = 2},
    {.hidden = 256,
     .inner = 384,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .biases = true,
     .head_norms = true,
     .experts = 9,
     .top_k = 3,
     .renormalise = false},
    {.hidden = 512,
     .inner = 256,
     .heads = 4,
     .kv_heads = 1,
     .head_dim = 128,
     .hadamard = true,
     .cache = DType::f8_e4m3,
     .experts = 16,
     .top_k = 1},
    {.hidden = 2304,
     .inner = 256,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 128,
     .window = 3,
     .cache = DType::i8,
     .layers = 2,
     .experts = 40,
     .top_k = 16},
    // Qwen3-30B-A3B's layer, with more experts than multiprocessors.
    {.hidden = 2048,
     .inner = 768,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .head_norms = true,
     .layers = 2,
     .experts = 160,
     .top_k = 8},
    // Down has more tiles than gate and up: blocks that choose without reading the stream.
    {.hidden = 1024, .inner = 256, .heads = 2, .kv_heads = 1, .head_dim = 128, .experts = 4, .top_k = 1},
};

TEST(DecodeMixture, CudaEqualsTheOpsOneByOne) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(kMixtures, {0, 1, 2, 3, 4, 5});
}

// Small enough for compute-sanitizer's racecheck.
TEST(DecodeMixture, CudaEqualsTheOpsOnSmallMixtures) {
  FEWBIT_NEEDS_GPU();
  expect_the_ops_values(std::span(kMixtures).first(2), {0, 1});
}

TEST(DecodeMixture, CudaTwoRunsGiveTheSameBits) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const Sizes& s : {kMixtures[3], kMixtures[4]})
    for (const bool apart : {false, true}) {
      const auto once = [&] { return apart ? run_apart(ex, s, {0, 1, 2}) : run(ex, s, {0, 1, 2}); };
      const Outcome a = once(), b = once();
      for (size_t i = 0; i < a.x.size(); ++i) EXPECT_EQ(first_difference(a.x[i], b.x[i]), "") << s.hidden;
    }
}

// Splits of the keys, which hand each other their sums; a window cuts them.
TEST(DecodeMixture, CudaReadsALongCache) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  Sizes s = kMixtures[1];
  s.layers = 1;
  std::vector<int32_t> positions;
  for (int32_t p = 0; p < 400; ++p) positions.push_back(p);
  for (const int64_t window : {0, 300}) {
    s.window = window;
    const Outcome expected = run(cpu, s, positions), found = run(gpu, s, positions), again = run(gpu, s, positions);
    for (const size_t i : {size_t{64}, size_t{129}, size_t{399}}) {
      EXPECT_LE(relative_error(found.x[i], expected.x[i]), tol::kLogitsBf16)
          << "position " << i << ", window " << window;
      EXPECT_EQ(first_difference(found.x[i], again.x[i]), "") << "position " << i << ", window " << window;
    }
  }
}

// Experts with the same row of the router have the same logit: the first of them come first, as in route().
TEST(DecodeMixture, CudaChoosesTheFirstOfEqualExperts) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  for (Sizes s : {kMixtures[1], kMixtures[3]}) {
    constexpr int64_t kRows = 5;  // so few that differ
    s.layers = 1;
    const Tensor rows = random_normal(DType::bf16, {kRows, s.hidden}, 11, 2 / std::sqrt(static_cast<float>(s.hidden)));
    Tensor router = Tensor::host(DType::bf16, {s.experts, s.hidden});
    for (int64_t i = 0; i < router.numel(); ++i) router.as<bf16>()[i] = rows.as<bf16>()[i % rows.numel()];
    const auto run_on = [&](Exec& ex) {
      Layers l(ex, s, 1);
      l.layers[0].mixture.router = l.keep(clone_host(router));
      const Tensor x = ex.to_device(random_normal(DType::bf16, {1, s.hidden}, 3));
      decode_layers(ex, make_stack(ex, l.layers, l.form), ex.to_device(host_i32({0})), x);
      return ex.to_host(x);
    };
    EXPECT_LE(relative_error(run_on(gpu), run_on(cpu)), tol::kLogitsBf16) << s.experts << " experts";
  }
}

// A NaN of x is in every expert's logit, and in all that they answer.
TEST(DecodeMixture, CudaPassesNaNOn) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  Sizes s = kMixtures[0];
  s.layers = 1;
  Layers l(ex, s, 1);
  Tensor x = random_normal(DType::bf16, {1, s.hidden}, 3);
  x.as<bf16>()[17] = bf16(std::numeric_limits<float>::quiet_NaN());
  const Tensor on_device = ex.to_device(x);
  decode_layers(ex, make_stack(ex, l.layers, l.form), ex.to_device(host_i32({0})), on_device);
  const Tensor lost = to_f32(ex.to_host(on_device));
  for (int64_t i = 0; i < lost.numel(); ++i) EXPECT_TRUE(std::isnan(lost.as<float>()[i])) << i;
}

TEST(DecodeMixture, CudaSaysWhichItHasNoKernelFor) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  Layers l(ex, kMixtures[1], 8);
  EXPECT_EQ(refuses_stack(ex, l.layers, l.form), "");
  const auto refused = [&](auto&& change) {
    std::vector<DecodeLayer> layers = l.layers;
    DecodeForm form = l.form;
    change(layers[1], form);
    return refuses_stack(ex, layers, form);
  };
  EXPECT_NE(refused([](DecodeLayer&, DecodeForm& f) { f.top_k = 17; }), "");
  EXPECT_NE(refused([](DecodeLayer& x, DecodeForm&) { x.mixture.up.pop_back(); }), "");
  EXPECT_NE(refused([](DecodeLayer& x, DecodeForm&) { x.mixture = {}; }), "");
  EXPECT_NE(refused([](DecodeLayer& x, DecodeForm&) { x.mixture.router.dtype = DType::f32; }), "");
  EXPECT_NE(refused([](DecodeLayer& x, DecodeForm&) { std::get<MarlinView>(x.mixture.down[2]).bits = 8; }), "");
  EXPECT_NE(refused([](DecodeLayer& x, DecodeForm&) { x.mixture.gate[3] = ByteView{}; }), "");
}

}  // namespace
}  // namespace fewbit::test
