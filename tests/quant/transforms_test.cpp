// Properties that every transform of the registry has: the function of a block stays, folds are exact in the
// stored type, what is kept stays as it is. And AWQ's own: it undoes planted outliers.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/statistics/gram_loss.h"
#include "src/core/half.h"
#include "src/eval/perplexity.h"
#include "src/model/family.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/rounding.h"
#include "src/text/builtin_texts.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/quant/planting.h"
#include "tests/support/devices.h"
#include "tests/support/model_logits.h"
#include "tests/support/tiny_families.h"

namespace fewbit {
namespace {

using namespace test;
namespace fs = std::filesystem;

std::map<std::string, LinearTarget> all_targets(const std::vector<BlockOp>& ops, const QuantSpec& spec) {
  std::map<std::string, LinearTarget> targets;
  for (const BlockOp& op : ops)
    for (const LinearDef& l : linears_of(op))
      targets[l.name] = {spec, Effort::reference, &method("rtn")};  // the quick search
  return targets;
}

// Statistics of made-up inputs in which a few features are much larger than the rest.
ActivationStats uneven_stats(Exec& ex, int64_t in, uint64_t seed) {
  constexpr int64_t kTokens = 500;
  const Tensor gram = correlated_gram(in, kTokens, seed);
  ActivationStats s;
  s.input.tokens = kTokens;
  Tensor absmax = Tensor::host(DType::f32, {in}), abssum = Tensor::host(DType::f64, {in});
  const auto factor = [](int64_t j) { return j % 37 == 5 ? 30.f : 1.f; };
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t j = 0; j < in; ++j) gram.as<float>()[i * in + j] *= factor(i) * factor(j);
    const float rms = std::sqrt(gram.as<float>()[i * in + i] / static_cast<float>(kTokens));
    absmax.as<float>()[i] = 3 * rms;
    abssum.as<double>()[i] = 0.8 * rms * kTokens;
  }
  s.input.gram = ex.to_device(gram);
  Tensor sample = random_normal(DType::f32, {64, in}, seed);
  for (int64_t i = 0; i < sample.numel(); ++i) sample.as<float>()[i] *= factor(i % in);
  s.sample = ex.to_device(sample);
  s.absmax = ex.to_device(absmax);
  s.abssum = ex.to_device(abssum);
  return s;
}

BlockF32 transformed(Exec& ex, const Checkpoint& c, int64_t layer, const Transform& t) {
  const std::vector<BlockOp>& ops = c.spec.block(layer);
  QuantSpec spec;
  t.fill_in(method("rtn"), spec);
  if (t.name == "balance") spec.turn = 16;  // it changes inputs that are turned, and no others
  TransformJob job{.ops = &ops, .targets = all_targets(ops, spec)};
  job.absorbers = usable_absorbers(ops, job.targets);
  for (const Absorber& a : job.absorbers)
    job.stats[a.name] = uneven_stats(ex, a.features * a.repeat, 40 + a.consumers.front());
  BlockF32 block = load_block_f32(ex, c, layer, job.absorbers);
  t.apply(ex, job, block);
  return block;
}

// A transform of the registry leaves the logits of the model as they are, though it rewrites something in it.
void expect_function_stays(Exec& ex, const Checkpoint& c, const Transform& t, const Tensor& before,
                           const fs::path& out) {
  std::map<std::string, Tensor> changed;
  size_t rewritten = 0;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    const BlockF32 block = transformed(ex, c, layer, t);
    for (const auto& [name, v] : block.vectors) rewritten += v.changed;
    for (const Absorber& a : absorbers_of(c.spec.block(layer)))  // without a bias no vector changes
      rewritten += a.kind == Absorber::Kind::linear_rows;
    collect(ex, block, c.spec.prefix(layer), changed);
  }
  EXPECT_GT(rewritten, 0u) << "nothing was rewritten, so nothing is tested";
  write_changed(c, changed, out);
  EXPECT_LE(relative_error(logits_of(ex, Checkpoint::open(out)), before), tol::kLogitsF32);
  fs::remove_all(out);
}

// The demo model, a made one, and those of the reference folder that are there: biases, norms of heads,
// windows, norms behind linears, fused linears, mixtures of experts and their stacks, gated attention beside delta
// nets, latents. The folds are right in deepseek-v4 and gemma4-e2b too, although a plan refuses them there for another
// reason.
std::vector<fs::path> models(const TempDir& dir) {
  std::vector<fs::path> all = {builtin_model_dir(), dir / "tiny"};
  synthesize(dir / "tiny", {.preset = "tiny"}, {});
  const fs::path goldens = reference("goldens/models");
  if (!fs::exists(goldens)) return all;
  for (const auto& folder : fs::directory_iterator(goldens)) {
    const std::string name = folder.path().filename().string();
    const bool codes = name == "deepseek-v3-fp8" || name == "gpt-oss-mxfp4";  // packed: no stored weights to rewrite
    if (!codes) all.push_back(folder.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

FEWBIT_DEVICE_TEST(Transforms, TheModelsFunctionStays) {
  const TempDir dir;
  for (const fs::path& model : models(dir)) {
    const Checkpoint c = Checkpoint::open(model);
    const Tensor before = logits_of(ex, c);
    for (const Transform* t : transforms()) {
      SCOPED_TRACE(std::string(t->name) + " on " + model.string());
      expect_function_stays(ex, c, *t, before, dir / "out");
    }
  }
}

// Families whose transforms a plan refuses, with words of its reason; all others of the registry are transformed.
struct RefusedFamily {
  std::string_view family, words;
};
constexpr RefusedFamily kRefusedFamilies[] = {
    {"DeepseekV4ForCausalLM", "ids of the tokens"},  // a block by itself lacks them
};

// What the plan of a recipe of this transform says against it; "" where it is planned.
std::string plan_refusals(const Checkpoint& c, const Transform& t) {
  const Recipe recipe = parse_recipe(std::string(t.name) + " effort=quick");
  std::string all;
  for (const Refusal& r : make_plan(c, {.base = recipe, .tokens = 256}).refusals)
    all += r.name + ": " + r.reason + "\n";
  return all;
}

class TransformsOfFamilies : public CasesOnDevices<const Family*> {};

TEST_P(TransformsOfFamilies, TheFunctionStaysOrThePlanRefuses) {
  Exec ex = exec();
  const Family& family = *the_case();
  const TempDir dir;
  synthesize(dir / "m", {.config = tiny_config_of(family.name()).dump()}, {});
  const Checkpoint c = Checkpoint::open(dir / "m");
  const auto* refused = std::find_if(std::begin(kRefusedFamilies), std::end(kRefusedFamilies),
                                     [&](const RefusedFamily& r) { return r.family == family.name(); });
  const bool refuses = refused != std::end(kRefusedFamilies);
  const Tensor before = refuses ? Tensor{} : logits_of(ex, c);
  for (const Transform* t : transforms()) {
    SCOPED_TRACE(t->name);
    const std::string why = plan_refusals(c, *t);
    if (refuses) {
      EXPECT_NE(why.find(refused->words), std::string::npos) << why;
      continue;
    }
    EXPECT_EQ(why, "") << "a family that is refused belongs into kRefusedFamilies";
    expect_function_stays(ex, c, *t, before, dir / "out");
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransformsOfFamilies, ::testing::Combine(::testing::ValuesIn(families()), every_device()),
                         [](const auto& info) {
                           const Family& family = *std::get<0>(info.param);
                           return std::string(family.name()) + "_" + std::get<1>(info.param);
                         });

// A config of a family may be refused where its others are not.
TEST(Transforms, APlanRefusesThemWhereLayersReadTheKeysOfOthers) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/gemma4-e2b");
  const Checkpoint c = Checkpoint::open(reference("goldens/models/gemma4-e2b"));
  for (const Transform* t : transforms())
    EXPECT_NE(plan_refusals(c, *t).find("keys and values of others"), std::string::npos) << t->name;
}

// n' W' = n W for every feature, with n' in the type the checkpoint stores it in.
TEST(Transforms, FoldsAreExactInTheStoredType) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(builtin_model_dir());
  for (const NormKind kind : {NormKind::rms, NormKind::rms_plus_one}) {
    std::vector<BlockOp> ops = c.spec.block(0);
    std::get<Norm>(ops[0]).kind = kind;
    const Absorber a = absorbers_of(ops)[0];
    ASSERT_EQ(a.kind, Absorber::Kind::norm);
    const BlockF32 before = load_block_f32(ex, c, 0, {a});
    BlockF32 after = load_block_f32(ex, c, 0, {a});
    std::vector<float> wish(static_cast<size_t>(a.features));
    for (size_t j = 0; j < wish.size(); ++j) wish[j] = std::exp(0.02f * (static_cast<float>(j) - 100));
    wish[3] = NAN;
    wish[4] = 0;
    const std::vector<float> s = foldable_scale(after, ops, a, wish);
    EXPECT_EQ(s[3], 1);
    EXPECT_EQ(s[4], 1);
    fold(ex, after, ops, a, s);
    const VectorF32 &n0 = before.vectors.at(a.name + ".weight"), &n1 = after.vectors.at(a.name + ".weight");
    const Tensor &w0 = before.weights.at("self_attn.q_proj.weight"), &w1 = after.weights.at("self_attn.q_proj.weight");
    const double offset = kind == NormKind::rms_plus_one ? 1 : 0;
    for (size_t j = 0; j < s.size(); ++j) {
      EXPECT_EQ(n1.value[j], round_to_bf16(n1.value[j])) << "the norm is stored in bf16";
      const double x0 = (offset + n0.value[j]) * w0.as<float>()[j], x1 = (offset + n1.value[j]) * w1.as<float>()[j];
      EXPECT_NEAR(x1, x0, tol::kF32Op * std::fabs(x0)) << j;
      if (j == 3 || j == 4) continue;
      EXPECT_NEAR(s[j], wish[j], kFoldSlack * wish[j]) << j;
    }
  }
}

TEST(Transforms, WhatIsKeptStaysAsItIs) {
  const Checkpoint c = Checkpoint::open(builtin_model_dir());
  const std::vector<BlockOp>& ops = c.spec.block(0);
  std::map<std::string, LinearTarget> targets = all_targets(ops, {});
  const auto names = [&] {
    std::set<std::string> out;
    for (const Absorber& a : usable_absorbers(ops, targets)) out.insert(a.name);
    return out;
  };
  EXPECT_EQ(names().size(), 4u);
  targets.erase("self_attn.v_proj");  // a consumer of the first norm, and the absorber of o_proj
  EXPECT_EQ(names(), (std::set<std::string>{"post_attention_layernorm", "mlp.up_proj"}));
  targets.erase("mlp.down_proj");
  EXPECT_EQ(names(), (std::set<std::string>{"post_attention_layernorm"}));
}

FEWBIT_DEVICE_TEST(Transforms, SameInputSameBytes) {
  const Checkpoint c = Checkpoint::open(builtin_model_dir());
  for (const Transform* t : transforms()) {
    std::map<std::string, Tensor> a, b;
    collect(ex, transformed(ex, c, 0, *t), "", a);
    collect(ex, transformed(ex, c, 0, *t), "", b);
    for (const auto& [name, tensor] : a) EXPECT_EQ(first_difference(tensor, b.at(name)), "") << name;
  }
}

// Behind it the features of an input have the same share of its energy as their columns have of the weights'.
FEWBIT_DEVICE_TEST(Transforms, BalanceEvensInputsWithTheirWeights) {
  const Checkpoint c = Checkpoint::open(builtin_model_dir());
  const std::vector<Absorber> absorbers = absorbers_of(c.spec.block(0));
  const BlockF32 before = load_block_f32(ex, c, 0, absorbers);
  const BlockF32 after = transformed(ex, c, 0, *find_transform("balance"));
  int seen = 0;
  for (const Absorber& a : absorbers) {
    if (a.name != "mlp.up_proj") continue;
    ++seen;
    const std::string name = a.linears.front().name + ".weight";
    const Tensor w0 = ex.to_host(before.weights.at(name)), w1 = ex.to_host(after.weights.at(name));
    const Tensor gram = ex.to_host(uneven_stats(ex, w0.cols(), 40 + a.consumers.front()).input.gram);
    double inputs = 0, columns = 0, inputs_before = 0, columns_before = 0;
    std::vector<double> h(static_cast<size_t>(w0.cols())), e(h);
    for (int64_t j = 0; j < w0.cols(); ++j) {
      const double s = w1.as<float>()[j] / w0.as<float>()[j], x = gram.as<float>()[j * w0.cols() + j];
      const auto at = static_cast<size_t>(j);
      double energy = 0;
      for (int64_t o = 0; o < w0.rows(); ++o) energy += std::pow(w0.as<float>()[o * w0.cols() + j], 2);
      inputs_before += x, columns_before += energy;
      inputs += h[at] = x / (s * s), columns += e[at] = energy * s * s;
    }
    for (size_t j = 0; j < h.size(); ++j) EXPECT_NEAR(h[j] / inputs, e[j] / columns, 1e-3 * h[j] / inputs) << j;
    EXPECT_LT(inputs * columns, 0.7 * inputs_before * columns_before) << "which is what rounding costs";
  }
  EXPECT_EQ(seen, 1);
}

// What the outputs of a mixture's gate (behind the norm) and down (behind up) lose, relative to their energy,
// summed over the experts: rounded as they are, and rounded as awq scaled them.
TEST(Transforms, AwqHelpsExperts) {
  Exec ex = Exec::cpu();
  for (const char* name : {"mixtral", "qwen3-moe"}) {
    FEWBIT_NEEDS_REFERENCE(std::string("goldens/models/") + name + "/config.json");
    SCOPED_TRACE(name);
    const Checkpoint c = Checkpoint::open(reference(std::string("goldens/models/") + name));
    const std::vector<BlockOp>& ops = c.spec.block(0);
    const Transform& awq = *find_transform("awq");
    QuantSpec spec;
    awq.fill_in(method("rtn"), spec);
    const std::vector<Absorber> absorbers = absorbers_of(ops);
    const BlockF32 before = load_block_f32(ex, c, 0, absorbers), after = transformed(ex, c, 0, awq);
    double rounded = 0, scaled = 0;
    int experts = 0;
    for (const Absorber& a : absorbers) {
      const LinearDef& l = a.linears.front();
      if (l.name.find("experts.") == std::string::npos) continue;
      ++experts;
      const Tensor& w0 = before.weights.at(l.name + ".weight");
      const Tensor& w1 = after.weights.at(l.name + ".weight");
      const ActivationStats stats = uneven_stats(ex, w0.cols(), 40 + a.consumers.front());
      const auto loss = [&](ConstTensorView values) {
        const Tensor rows = Tensor::host(DType::f64, {w0.rows()});
        gram_loss(ex, w0, values, stats.input.gram, rows);
        return sum_of(ex, rows);
      };
      const double energy = loss(ex.alloc_zeros(DType::f32, w0.shape()));
      rounded += loss(values_of(ex, round_plain(ex, w0, {}, spec, ScaleRule::absmax), spec)) / energy;
      Tensor values = values_of(ex, round_plain(ex, w1, {}, spec, ScaleRule::absmax), spec);
      for (int64_t i = 0; i < values.numel(); ++i) {  // back by w0 / w1 of the column, which all rows share
        const int64_t j = i % w0.cols();
        values.as<float>()[i] *= w0.as<float>()[j] / w1.as<float>()[j];
      }
      scaled += loss(values) / energy;
    }
    EXPECT_EQ(experts, 1 + (name == std::string("mixtral") ? 4 : 8));
    EXPECT_LT(scaled, rounded / 2);
  }
}

// The demo model and a planted copy of it, and what quantizing costs each on the built-in text.
class Planted : public ::testing::Test {
 protected:
  void plant(const Planting& planting) {
    plant_outliers(plain, planting, dir / "planted");
    planted.emplace(Checkpoint::open(dir / "planted"));
    base = nll(plain.dir);
    EXPECT_NEAR(nll(planted->dir), base, tol::kLogitsF32 * base) << "planting keeps the function";
  }

  double nll(const fs::path& model) {
    const Checkpoint c = Checkpoint::open(model);
    Runner runner(ex, c, {.dtype = DType::f32});
    return perplexity(runner, text, 4096).mean_nll;
  }

  // Mean NLL above that of the model as it is.
  double gap(const Checkpoint& c, const std::string& recipe) {
    const QuantPlan plan = make_plan(c, {.base = parse_recipe(recipe), .tokens = 4 * 256});
    const fs::path out = dir / "out";
    run_pipeline(ex, c, plan, calibration, {.recipe = recipe, .out = out, .force = true});
    return nll(out) - base;
  }

  const TempDir dir;
  Exec ex = Exec::cpu();
  const Checkpoint plain = Checkpoint::open(builtin_model_dir());
  std::optional<Checkpoint> planted;
  std::string note;
  const Tokenizer tokenizer = Tokenizer::open(plain.dir);
  const Windows calibration = draw_calibration(tokenizer, builtin_calibration(), 4, 256, 0, &note);
  const Windows text = cut_windows(tokenizer, builtin_evaluation("builtin:multilingual"), 256, 12, "builtin");
  double base = 0;
};

TEST_F(Planted, AwqUndoesOutliers) {
  plant({});
  const double lost = gap(*planted, "rtn int4 g128");
  EXPECT_GT(lost, 3 * gap(plain, "rtn int4 g128"));
  EXPECT_LT(gap(*planted, "awq"), lost / 2);
}

TEST_F(Planted, SmoothQuantUndoesOutliers) {
  plant({.where = Planting::Where::drawn});
  const double lost = gap(*planted, "rtn w8a8"), published = gap(*planted, "smoothquant alpha=0.5");
  EXPECT_GT(lost, std::log(1.05)) << "perplexity";
  EXPECT_LT(published, std::log(1.006));
  EXPECT_LT(gap(*planted, "smoothquant"), std::log(1.006));
}

// The same inside a mixture, whose routers see the planted channels too. The models are random, so what
// counts is the distance of the logits of the median token: one that a near tie sends to another expert is
// far off in any run.
TEST(PlantedExperts, SmoothQuantUndoesOutliers) {
  Exec ex = Exec::cpu();
  for (const char* name : {"mixtral", "qwen3-moe"}) {
    FEWBIT_NEEDS_REFERENCE(std::string("goldens/models/") + name + "/config.json");
    SCOPED_TRACE(name);
    const Checkpoint plain = Checkpoint::open(reference(std::string("goldens/models/") + name));
    const TempDir dir;
    plant_outliers(plain, {.where = Planting::Where::drawn}, dir / "planted");
    const Checkpoint planted = Checkpoint::open(dir / "planted");
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 16 * 64; ++i)
      ids.push_back(static_cast<int32_t>((i * 7919 + i / 64 * 31) % plain.spec.vocab));
    const auto logits = [&](const Checkpoint& c) {
      Runner runner(ex, c, {.dtype = DType::f32});
      return ex.to_host(runner.logits(runner.hidden(ids, 16)));
    };
    const Tensor exact = logits(plain);
    const auto median_error = [&](const Checkpoint& c) {
      const Tensor found = logits(c);
      std::vector<double> errors;
      for (int64_t t = 0; t < exact.rows(); ++t)
        errors.push_back(relative_error(found.view().row_range(t, t + 1), exact.view().row_range(t, t + 1)));
      std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
      return errors[errors.size() / 2];
    };
    EXPECT_LE(median_error(planted), tol::kLogitsF32);
    const auto quantized = [&](const Checkpoint& c, const std::string& recipe) {
      const QuantPlan plan = make_plan(c, {.base = parse_recipe(recipe), .tokens = 16 * 64});
      run_pipeline(ex, c, plan, windows_from_ids(ids, 16, 64, "made"),
                   {.recipe = recipe, .out = dir / "out", .force = true});
      return median_error(Checkpoint::open(dir / "out"));
    };
    const double usual = quantized(plain, "rtn w8a8"), lost = quantized(planted, "rtn w8a8"),
                 published = quantized(planted, "smoothquant alpha=0.5"), searched = quantized(planted, "smoothquant");
    EXPECT_GT(lost, 3 * usual);
    EXPECT_LT(published, 1.5 * usual);
    EXPECT_LT(searched, 1.2 * usual);
  }
}

}  // namespace
}  // namespace fewbit
