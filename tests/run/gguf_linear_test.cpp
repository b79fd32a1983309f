// Models in .gguf files whose blocks are multiplied as such: what they compute is what their values compute.
#include "src/run/gguf/gguf_linear.h"

#include "kernels/products/blocks/block_dot.h"
#include "src/model/gguf/writer.h"
#include "src/run/head.h"
#include "src/run/runner.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

// The demo model with all of its matrices in one type.
class GgufLinears : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!cpu::has_block_dots()) GTEST_SKIP() << "no loops for blocks on this CPU";
    const Checkpoint source = Checkpoint::open(demo());
    const gguf::BlockType& type = gguf::block_type(GetParam());
    GgufContents given;
    for (const NamedLinear& l : source.linears())
      given[l.name + ".weight"] = {
          &type, [&source, &type, l] { return gguf::encode(type, source.values(l), {}, gguf::Encoder::plain); }};
    given[source.spec.embed] = {&type, [&source, &type] {
                                  return gguf::encode(type, to_f32(source.store.get(source.spec.embed)), {},
                                                      gguf::Encoder::plain);
                                }};
    write_gguf(source, dir_ / "m.gguf", given, {});
    file_.emplace(Checkpoint::open(dir_ / "m.gguf"));
  }
  TempDir dir_;
  std::optional<Checkpoint> file_;
};

TEST_P(GgufLinears, MultiplyTheirValues) {
  Exec ex = Exec::cpu();
  const ModelSpec& spec = file_->spec;
  for (const NamedLinear& l : linears_of(spec)) {
    if (l.layer > 0) break;  // q and k have their rows in another order in the file
    std::string note = "unset";
    const Linear linear = load_linear(ex, *file_, l, {}, &note);
    EXPECT_EQ(kind_of(linear), GetParam()) << l.name;
    EXPECT_EQ(note, "");
    const Linear dense = load_linear(ex, *file_, l, {.dtype = DType::f32, .weights = Weights::values}, nullptr);
    for (const int64_t rows : {1, 6, 20}) {
      const Tensor x = random_normal(DType::bf16, {rows, l.in}, 1);
      const Tensor y = poisoned(ex, DType::f32, {rows, l.out}), truth = poisoned(ex, DType::f32, {rows, l.out});
      apply(ex, linear, x, y);
      apply(ex, dense, to_f32(x), truth);
      EXPECT_LE(relative_error(y, truth), tol::kF32Product) << l.name << " rows " << rows;
    }
  }
}

TEST_P(GgufLinears, EmbedAndEndAsTheirValues) {
  Exec ex = Exec::cpu();
  const ModelSpec& spec = file_->spec;
  const Ends blocks = load_ends(ex, *file_, {}), dense = load_ends(ex, *file_, {.weights = Weights::values});
  EXPECT_TRUE(blocks.embed.empty());
  EXPECT_EQ(head_kind(blocks), GetParam());
  EXPECT_LT(head_bytes(blocks), head_bytes(dense));
  const std::vector<int32_t> ids = random_ids(9, 1);
  const Tensor at = Tensor::host_from<int32_t>(DType::i32, {9}, ids);
  const Tensor a = poisoned(ex, DType::bf16, {9, spec.width()}), b = poisoned(ex, DType::bf16, {9, spec.width()});
  embed_streams(ex, spec, at, blocks, a);
  embed_streams(ex, spec, at, dense, b);
  EXPECT_EQ(first_difference(a, b), "");
}

TEST_P(GgufLinears, GiveThePerplexityOfTheirValues) {
  Exec ex = Exec::cpu();
  const std::vector<int32_t> ids = random_ids(4 * 256, 3);
  const auto mean = [&](const LoadOptions& o) {
    Runner runner(ex, *file_, o);
    double sum = 0;
    const std::vector<float> losses = runner.nll(ids, 4, 1);
    for (const float l : losses) sum += l;
    return sum / static_cast<double>(losses.size());
  };
  const double values = mean({.dtype = DType::f32, .weights = Weights::values});
  EXPECT_NEAR(std::exp(mean({}) - values), 1, tol::kPackedPerplexityShort);
}

INSTANTIATE_TEST_SUITE_P(Types, GgufLinears,
                         ::testing::Values("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k",
                                           "q6_k", "iq4_nl", "iq4_xs", "mxfp4"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fewbit::test
