// Layers that two GPUs share, on one: each half has half of the multiprocessors, so that both launches run at once.
#include "kernels/decode/decode_layers.h"

#include <memory>

#include "tests/kernels/decode/layer_runs.h"

namespace fewbit::test {
namespace {

constexpr int64_t kGathered = 100003;
constexpr uint64_t kPatience = 5000000000, kLittlePatience = 50000000;  // ns

const Sizes kSharedSizes[] = {
    {.hidden = 512, .inner = 768, .heads = 8, .kv_heads = 2, .head_dim = 64},
    {.hidden = 1024,
     .inner = 1536,
     .heads = 14,
     .kv_heads = 2,
     .head_dim = 128,
     .biases = true,
     .head_norms = true,
     .cache = DType::f8_e4m3},
    {.hidden = 4096, .inner = 14336, .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = 2},
    {.hidden = 512, .inner = 768, .heads = 8, .kv_heads = 2, .head_dim = 64, .zeros = true},
    {.hidden = 512, .inner = 768, .heads = 8, .kv_heads = 2, .head_dim = 64, .bytes = true},
    {.hidden = 1024, .inner = 1536, .heads = 16, .kv_heads = 2, .head_dim = 64, .bytes = true, .fixed = 0.02f},
};
const std::vector<int32_t> kSteps = {0, 1, 2, 3, 4, 5, 6, 7};

Tensor input(const Sizes& s, int32_t position) {
  return random_normal(DType::bf16, {1, s.hidden}, static_cast<uint64_t>(position) + 7);
}

// What one of two GPUs has.
struct Half {
  Exec ex = Exec::cuda(0);
  Tensor window, silent;
  std::unique_ptr<Layers> layers;
  DecodeStack stack;
  std::vector<Tensor> positions, x;  // of all steps, on the device before the first launch

  Half(const Sizes& s, int part) {
    Sizes own = s;
    own.part = part, own.parts = 2;
    layers = std::make_unique<Layers>(ex, own, kSteps.back() + 1);
    window = ex.alloc_zeros(DType::u8, {DecodePeer::bytes(s.hidden, kGathered)});
    silent = ex.alloc_pinned(DType::i32, {1});
    *silent.as<int32_t>() = 0;
    for (const int32_t p : kSteps) {
      positions.push_back(ex.to_device(host_i32({p})));
      x.push_back(ex.to_device(input(s, p)));
    }
    ex.sync();
  }
  // Words go to `to`, a window.
  void prepare(const Tensor& to, uint64_t patience, bool apart = false) {
    DecodeForm form = layers->form;
    form.attention_apart = apart;
    form.peer = DecodePeer::in(window.view().data, to.view().data, in_of(layers->layers[0].q),
                               reinterpret_cast<uint32_t*>(silent.as<int32_t>()), patience);
    ASSERT_EQ(refuses_stack(ex, layers->layers, form), "");
    stack = make_stack(ex, layers->layers, form);
    stack.blocks = stack.blocks / 4 * 2;  // whole clusters, on half of the multiprocessors
    ex.sync();
  }
  void step(size_t i) { decode_layers(ex, stack, positions[i], x[i]); }
};
struct BothHalves {
  Half first, second;
  explicit BothHalves(const Sizes& s) : first(s, 0), second(s, 1) {
    first.prepare(second.window, kPatience), second.prepare(first.window, kPatience);
  }
};

void expect_the_whole_layers(const Sizes& s) {
  Exec cpu = Exec::cpu();
  const Outcome expected = run(cpu, s, kSteps);
  BothHalves both(s);
  for (size_t i = 0; i < kSteps.size(); ++i) both.first.step(i), both.second.step(i);
  for (size_t i = 0; i < kSteps.size(); ++i) {
    const Tensor a = both.first.ex.to_host(both.first.x[i]), b = both.second.ex.to_host(both.second.x[i]);
    const std::string what = fmt::format("hidden {}, bytes {}, zeros {}, step {}", s.hidden, s.bytes, s.zeros, i);
    EXPECT_EQ(first_difference(a, b), "") << what;
    EXPECT_LE(relative_error(a, expected.x[i]), s.bytes ? tol::kLogitsBytesBf16 : tol::kLogitsBf16) << what;
  }
  for (const Half* half : {&both.first, &both.second}) EXPECT_EQ(*half->silent.as<int32_t>(), 0);
}

TEST(DecodePeer, CudaHalvesMakeWhatTheWholeLayersDo) {
  FEWBIT_NEEDS_GPU();
  for (const Sizes& s : kSharedSizes) expect_the_whole_layers(s);
}

// Small enough for compute-sanitizer.
TEST(DecodePeer, CudaHalvesEqualTheOpsOnSmallLayers) {
  FEWBIT_NEEDS_GPU();
  expect_the_whole_layers(kSharedSizes[0]);
}

TEST(DecodePeer, CudaGathersWhatEachHalfHas) {
  FEWBIT_NEEDS_GPU();
  BothHalves both(kSharedSizes[0]);
  for (const int64_t cut : {kGathered / 2, int64_t{64}, kGathered}) {
    const Tensor right = random_normal(DType::f32, {kGathered}, static_cast<uint64_t>(cut));
    const auto part = [&](Half& half, int64_t begin, int64_t end) {
      Tensor t = half.ex.alloc_zeros(DType::f32, {kGathered});
      if (end > begin) half.ex.copy(right.view().row_range(begin, end), t.view().row_range(begin, end));
      half.ex.sync();
      return t;
    };
    const Tensor a = part(both.first, 0, cut), b = part(both.second, cut, kGathered);
    gather_from_peer(both.first.ex, both.first.stack.form.peer, a, 0, cut);
    gather_from_peer(both.second.ex, both.second.stack.form.peer, b, cut, kGathered);
    EXPECT_EQ(first_difference(both.first.ex.to_host(a), right), "") << cut;
    EXPECT_EQ(first_difference(both.second.ex.to_host(b), right), "") << cut;
    both.first.step(0), both.second.step(0);  // something else is exchanged before the next gather
  }
}

// With attention apart, where launches would get in each other's way on one GPU: one half alone, with the other's words
// of the same step still there.
TEST(DecodePeer, CudaExchangesWithAttentionApart) {
  FEWBIT_NEEDS_GPU();
  for (Sizes s : {kSharedSizes[0], kSharedSizes[4]}) {
    s.layers = 1;
    BothHalves both(s);
    both.first.step(0), both.second.step(0);
    Half& half = both.first;
    const Tensor together = half.ex.to_host(half.x[0]);
    half.ex.copy(input(s, kSteps[0]), half.x[0]);
    half.prepare(both.second.window, kPatience, true);
    half.ex.zero(half.window.view().row_range(0, static_cast<int64_t>(sizeof(uint32_t))));  // no exchange so far
    half.step(0);
    EXPECT_LE(relative_error(half.ex.to_host(half.x[0]), together), tol::kBf16Op);
    EXPECT_EQ(*half.silent.as<int32_t>(), 0);
    EXPECT_EQ(*reinterpret_cast<const uint32_t*>(half.ex.to_host(half.window).as<uint8_t>()), 2u);
  }
}

// A GPU that does not hear from the other one ends all the same, and says so.
TEST(DecodePeer, CudaGivesUpOnTheOtherGpu) {
  FEWBIT_NEEDS_GPU();
  Half half(kSharedSizes[0], 0);
  const Tensor nobody = half.ex.alloc_zeros(DType::u8, {DecodePeer::bytes(kSharedSizes[0].hidden, kGathered)});
  half.prepare(nobody, kLittlePatience);
  half.step(0), half.step(1);
  half.ex.sync();
  EXPECT_EQ(*half.silent.as<int32_t>(), 1);
}

// The ops of the CPU have no exchange.
TEST(DecodePeer, CpuRefusesIt) {
  Exec cpu = Exec::cpu();
  Layers l(cpu, kSharedSizes[0], 1);
  uint64_t words[1] = {};
  l.form.peer = DecodePeer::in(words, words, 0, nullptr, 0);
  EXPECT_EQ(refuses_stack(cpu, l.layers, l.form), "layers that two GPUs share");
}

}  // namespace
}  // namespace fewbit::test
