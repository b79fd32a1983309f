// Models in another basis: the matrices themselves, and that a turned model says what the model says.
#include "src/model/rotation/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/model/family.h"
#include "src/model/rotation/hadamard_basis.h"
#include "src/model/synth/synth.h"
#include "src/text/builtin_texts.h"
#include "tests/support/devices.h"
#include "tests/support/model_logits.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

TEST(HadamardBasis, PaleyMatricesHaveOrthogonalRows) {
  for (const int64_t m : {4, 8, 12, 20, 24, 28, 36, 44, 52, 60, 172, 180}) {
    const std::vector<int8_t> h = paley_hadamard(m);
    if (h.empty()) {  // of those above only these need a field that is none of integers modulo a prime
      EXPECT_TRUE(m == 52 || m == 172) << m;
      continue;
    }
    for (int64_t a = 0; a < m; ++a)
      for (int64_t b = 0; b < m; ++b) {
        int64_t dot = 0;
        for (int64_t i = 0; i < m; ++i) dot += h[static_cast<size_t>(a * m + i)] * h[static_cast<size_t>(b * m + i)];
        ASSERT_EQ(dot, a == b ? m : 0) << m << ": " << a << ", " << b;
      }
  }
}

TEST(HadamardBasis, IsOrthonormalAndTurnsRowsAndColumnsAlike) {
  for (const int64_t n : {1, 2, 12, 64, 86, 96, 384, 7 * 64}) {
    const HadamardBasis basis(n, 3, "test");
    Tensor r = Tensor::host_zeros(DType::f32, {n, n});  // R, and R^T by columns
    for (int64_t i = 0; i < n; ++i) r.as<float>()[i * n + i] = 1;
    Tensor columns = clone_host(r);
    basis.turn(r.as<float>(), n, 1);
    basis.turn(columns.as<float>(), 1, n);
    double off = 0;
    for (int64_t a = 0; a < n; ++a)
      for (int64_t b = 0; b < n; ++b) {
        double dot = 0;
        for (int64_t i = 0; i < n; ++i) dot += static_cast<double>(r.as<float>()[a * n + i]) * r.as<float>()[b * n + i];
        off = std::max(off, std::fabs(dot - (a == b ? 1 : 0)));
        ASSERT_EQ(r.as<float>()[a * n + b], columns.as<float>()[b * n + a]) << n;
      }
    EXPECT_LT(off, tol::kF32Op) << n;
  }
  EXPECT_EQ(HadamardBasis(384, 0, "").str(), "384 = 12 x 32");
  EXPECT_EQ(HadamardBasis(86, 0, "").str(), "86 = 43 blocks of 2");
  EXPECT_EQ(HadamardBasis(128, 0, "").str(), "128");
}

void expect_same_logits(Exec& ex, const fs::path& model, double tolerance, bool heads = true) {
  const Checkpoint plain = Checkpoint::open(model);
  const Checkpoint turned = with_rotation(Checkpoint::open(model), 7, DType::f32, heads);
  EXPECT_FALSE(turned.spec.tied());
  const std::string embed = plain.spec.embed;
  EXPECT_NE(first_difference(plain.store.get(embed), turned.store.get(embed)), "") << "nothing was turned";
  EXPECT_LT(relative_error(logits_of(ex, turned), logits_of(ex, plain)), tolerance) << model;
}

TEST(Rotation, LeavesTheDemoModelAsItIs) {
  Exec ex = Exec::cpu();
  const fs::path model = in_source("calib_data/demo-model");
  for (const bool heads : {true, false}) expect_same_logits(ex, model, tol::kLogitsF32, heads);
  EXPECT_NE(with_rotation(Checkpoint::open(model), 7, {}, false).rotation.find("heads as they are"), std::string::npos);
}

// Families of every kind of block that takes a rotation in, and those that cannot, with the op that is in the way.
struct Golden {
  const char* golden;
  const char* refusal;  // "" = it is turned
};
constexpr Golden kGoldens[] = {{"llama", ""},
                               {"qwen3-qknorm", ""},
                               {"qwen2-bias", ""},
                               {"qwen3-moe", ""},
                               {"mixtral", ""},
                               {"qwen2-moe", ""},
                               {"phi3-fused", ""},
                               {"mistral-swa", ""},
                               {"granite", ""},
                               {"qwen3-next", "MTP layers"},
                               {"gpt-oss-bf16", ""},
                               {"deepseek-v2-mla", ""},
                               {"gemma2", "post_attention_layernorm"},
                               {"olmo2", "post_attention_layernorm"},
                               {"cohere", "takes a mean away"}};

class RotatedFamily : public ::testing::TestWithParam<Golden> {};

TEST_P(RotatedFamily, SaysTheSameOrIsRefusedByTheOp) {
  const std::string folder = std::string("goldens/models/") + GetParam().golden;
  FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
  Exec ex = Exec::cpu();
  const fs::path model = reference(folder);
  if (*GetParam().refusal == 0) return expect_same_logits(ex, model, tol::kLogitsF32);
  try {
    with_rotation(Checkpoint::open(model), 0);
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(GetParam().refusal), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, RotatedFamily, ::testing::ValuesIn(kGoldens), [](const auto& info) {
  std::string name = info.param.golden;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

// Any family of the registry, on a small model of random weights: turned it says the same, or it is refused.
class RotationOfFamilies : public ::testing::TestWithParam<const Family*> {};

TEST_P(RotationOfFamilies, SaysTheSameOrIsRefused) {
  Exec ex = Exec::cpu();
  const TempDir dir;
  synthesize(dir / "m", {.config = tiny_config_of(GetParam()->name()).dump()}, {});
  try {
    with_rotation(Checkpoint::open(dir / "m"), 7, DType::f32);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported) << e.what();
    return;
  }
  expect_same_logits(ex, dir / "m", tol::kLogitsF32);
}

INSTANTIATE_TEST_SUITE_P(All, RotationOfFamilies, ::testing::ValuesIn(families()),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace fewbit::test
