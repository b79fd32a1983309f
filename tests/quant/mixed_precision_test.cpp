// `auto`: the choice stays within its budget, is never expected to be worse than a uniform one, and is the same twice.
#include "src/quant/search/mixed_precision.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "src/core/rng.h"
#include "src/model/synth/synth.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

Windows random_windows(int64_t count, int64_t length, int64_t vocab) {
  Windows w{.count = count, .length = length, .ids = {}, .source = "random"};
  Rng rng(11);
  for (int64_t i = 0; i < count * length; ++i)
    w.ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
  return w;
}

class MixedPrecision : public OnDevices {
 protected:
  MixedPrecision() {
    synthesize(dir / "tiny", {.preset = "tiny"}, {});
    checkpoint.emplace(Checkpoint::open(dir / "tiny"));
    windows = random_windows(4, 32, checkpoint->spec.vocab);
  }
  PrecisionPlan choose(const std::string& recipe, std::vector<Rule> rules = {}) {
    Exec ex = exec();
    const PrecisionJob job{.base = parse_recipe(recipe), .rules = std::move(rules)};
    return choose_precision(ex, *checkpoint, windows, job, precision_choices(*checkpoint, job));
  }
  QuantPlan plan_of(const PrecisionPlan& p, std::vector<Rule> rules = {}) {
    return make_plan(*checkpoint, {.base = parse_recipe("auto"), .rules = std::move(rules), .chosen = p.recipes()});
  }
  std::string error_of(const std::string& recipe) {
    try {
      choose(recipe);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      return e.what();
    }
    return "";
  }

  TempDir dir;
  std::optional<Checkpoint> checkpoint;
  Windows windows;
};

TEST_P(MixedPrecision, StaysWithinTheBudgetThatThePlanConfirms) {
  for (const std::string target : {"3.5", "4.25", "6"}) {
    const PrecisionPlan p = choose("auto target-bits=" + target);
    EXPECT_LE(p.bits, std::stod(target));
    EXPECT_GT(p.bits, std::stod(target) - 0.5);
    const QuantPlan plan = plan_of(p);
    EXPECT_TRUE(plan.refusals.empty());
    EXPECT_NEAR(plan.bits_per_weight, p.bits, 1e-9);
  }
}

TEST_P(MixedPrecision, FusedSiblingsShareASpec) {
  const QuantPlan plan = plan_of(choose("auto target-bits=4.25"));
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    const QuantSpec q = plan.of(layer + "self_attn.q_proj").recipe.spec;
    EXPECT_EQ(plan.of(layer + "self_attn.k_proj").recipe.spec, q);
    EXPECT_EQ(plan.of(layer + "self_attn.v_proj").recipe.spec, q);
    EXPECT_EQ(plan.of(layer + "mlp.gate_proj").recipe.spec, plan.of(layer + "mlp.up_proj").recipe.spec);
  }
}

TEST_P(MixedPrecision, MoreBitsAreExpectedToCostLess) {
  const double few = choose("auto target-bits=3.3").cost, more = choose("auto target-bits=4.25").cost,
               many = choose("auto target-bits=6").cost;
  EXPECT_GT(few, more);
  EXPECT_GT(more, many);
  EXPECT_GT(many, 0);
}

TEST_P(MixedPrecision, SameInputSameChoice) {
  const PrecisionPlan a = choose("auto target-bits=4.25"), b = choose("auto target-bits=4.25");
  ASSERT_EQ(a.choices.size(), b.choices.size());
  EXPECT_EQ(a.cost, b.cost);
  for (size_t i = 0; i < a.choices.size(); ++i)
    EXPECT_EQ(a.choices[i].scheme().candidate.spec, b.choices[i].scheme().candidate.spec);
}

TEST_P(MixedPrecision, TheUsersRulesAreNeitherChosenNorCounted) {
  const std::vector<Rule> rules = {{"*.down_proj", parse_recipe("int8 g128")}, {"*.o_proj", Recipe{.keep = true}}};
  const PrecisionPlan p = choose("auto target-bits=4.25", rules);
  EXPECT_LE(p.bits, 4.25);
  for (const PrecisionChoice& c : p.choices)
    for (const std::string& name : c.linears) {
      EXPECT_EQ(name.find("down_proj"), std::string::npos);
      EXPECT_EQ(name.find("o_proj"), std::string::npos);
    }
  EXPECT_EQ(plan_of(p, rules).of("model.layers.1.mlp.down_proj").recipe.spec.bits, 8);
  EXPECT_TRUE(plan_of(p, rules).of("model.layers.1.self_attn.o_proj").keep);
}

TEST_P(MixedPrecision, RefusesWhatItCannotMean) {
  EXPECT_NE(error_of("auto int4").find("leave them out"), std::string::npos);
  EXPECT_NE(error_of("auto target-bits=2").find("the smallest specs"), std::string::npos);
  windows = random_windows(1, 64, checkpoint->spec.vocab);
  EXPECT_NE(error_of("auto").find("--samples 2"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Backends, MixedPrecision, every_device(), device_name);

}  // namespace
}  // namespace fewbit::test
