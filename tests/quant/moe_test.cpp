// Quantizing a mixture of experts: what an expert's statistics are, that a starved one borrows by the formula
// of experts.h, and whole runs on the two golden models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "src/calib/experts.h"
#include "src/eval/verify.h"
#include "src/quant/loop/pipeline.h"
#include "src/run/runner.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

const Moe& moe_of(const ModelSpec& spec) {
  for (const BlockOp& op : spec.block(0))
    if (const Moe* m = std::get_if<Moe>(&op)) return *m;
  bug("no mixture of experts");
}

// sum over rows of a^T b in doubles.
std::vector<double> outer(const Tensor& a, const Tensor& b) {
  const int64_t n = a.cols();
  std::vector<double> h(static_cast<size_t>(n * n));
  for (int64_t t = 0; t < a.rows(); ++t)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        h[static_cast<size_t>(i * n + j)] += static_cast<double>(a.as<float>()[t * n + i]) * b.as<float>()[t * n + j];
  return h;
}

double trace_of(const std::vector<double>& h, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += h[static_cast<size_t>(i * n + i)];
  return sum;
}

void expect_near(Exec& ex, const Tensor& found, const std::vector<double>& expected, const char* what) {
  Tensor e = Tensor::host(DType::f32, found.shape());
  for (size_t i = 0; i < expected.size(); ++i) e.as<float>()[i] = static_cast<float>(expected[i]);
  EXPECT_LE(relative_error(ex.to_host(found), e), tol::kF32Product) << what;
}

std::vector<double> lent(std::vector<double> own, const std::vector<double>& all, double factor) {
  for (size_t i = 0; i < own.size(); ++i) own[i] += factor * all[i];
  return own;
}

class Experts : public ::testing::Test {
 protected:
  void open(int64_t tokens) {
    checkpoint.emplace(Checkpoint::open(reference("goldens/models/qwen3-moe")));
    op = &moe_of(checkpoint->spec);
    weights = load_block(ex, *checkpoint, 0, {.dtype = DType::f32}, nullptr);
    x = random_normal(DType::f32, {tokens, op->hidden}, 1);
    full = random_normal(DType::f32, {tokens, op->hidden}, 2);
    for (int64_t i = 0; i < full.numel(); ++i) full.as<float>()[i] = x.as<float>()[i] + full.as<float>()[i] / 10;
  }
  // The tokens of an expert, by the definition: among the top_k of the router's logits.
  std::vector<int64_t> rows_of(int expert) const {
    const Tensor& router = weights.vectors.at(op->router);
    std::vector<int64_t> rows;
    for (int64_t t = 0; t < x.rows(); ++t) {
      std::vector<double> z(static_cast<size_t>(op->experts));
      for (int e = 0; e < op->experts; ++e)
        for (int64_t i = 0; i < op->hidden; ++i)
          z[static_cast<size_t>(e)] +=
              static_cast<double>(x.as<float>()[t * op->hidden + i]) * router.as<float>()[e * op->hidden + i];
      int better = 0;
      for (const double v : z) better += v > z[static_cast<size_t>(expert)];
      if (better < op->top_k) rows.push_back(t);
    }
    return rows;
  }
  static Tensor taken(const Tensor& from, const std::vector<int64_t>& rows) {
    Tensor out = Tensor::host(DType::f32, {static_cast<int64_t>(rows.size()), from.cols()});
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(from.as<float>() + rows[i] * from.cols(), from.cols(),
                  out.as<float>() + static_cast<int64_t>(i) * from.cols());
    return out;
  }
  // The input in portions of `rows`, as chunks of a calibration would bring them.
  ExpertInputs::EachRouted each(int64_t rows, bool both = true) const {
    return [this, rows, both](const auto& show) {
      for (int64_t at = 0; at < x.rows(); at += rows) {
        const int64_t end = std::min(x.rows(), at + rows);
        const ConstTensorView mine = x.view().row_range(at, end);
        show(mine, both ? ConstTensorView(full.view().row_range(at, end)) : ConstTensorView{}, mine);
      }
    };
  }
  Exec ex = Exec::cpu();
  std::optional<Checkpoint> checkpoint;
  const Moe* op = nullptr;
  BlockWeights weights;
  Tensor x, full;
};

TEST_F(Experts, FedOnesSeeTheirTokensOnly) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  open(2400);
  ExpertInputs seen(ex, *op, weights, each(700), true, 3);
  const std::vector<int64_t> tokens = seen.tokens();
  EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), 2400 * op->top_k);
  int fed = 0;
  for (int e = 0; e < op->experts; ++e) {
    const std::vector<int64_t> rows = rows_of(e);
    EXPECT_EQ(tokens[static_cast<size_t>(e)], static_cast<int64_t>(rows.size())) << e;
    if (tokens[static_cast<size_t>(e)] < 2 * op->hidden) continue;
    ++fed;
    const InputStats s = seen.of_input(e, {});
    EXPECT_EQ(s.tokens, static_cast<int64_t>(rows.size()));
    EXPECT_EQ(s.borrowed, 0);
    expect_near(ex, s.gram, outer(taken(x, rows), taken(x, rows)), "gram");
    expect_near(ex, s.cross, outer(taken(full, rows), taken(x, rows)), "cross");
  }
  EXPECT_GT(fed, 0);
}

TEST_F(Experts, StarvedOnesBorrowWhatIsMissingFromTheirLayer) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  open(200);
  ExpertInputs seen(ex, *op, weights, each(64), true, 3);
  EXPECT_EQ(seen.starved().size(), static_cast<size_t>(op->experts));
  const std::vector<double> all = outer(x, x), all_cross = outer(full, x);
  for (int e = 0; e < op->experts; ++e) {
    const std::vector<int64_t> rows = rows_of(e);
    const std::vector<double> own = outer(taken(x, rows), taken(x, rows));
    const double n = static_cast<double>(rows.size()), missing = 2.0 * static_cast<double>(op->hidden) - n;
    const double match = n > 0 ? (trace_of(own, op->hidden) / n) / (trace_of(all, op->hidden) / 200) : 1;
    const InputStats s = seen.of_input(e, {});
    EXPECT_EQ(s.tokens, 2 * op->hidden);
    EXPECT_EQ(s.tokens - s.borrowed, static_cast<int64_t>(rows.size()));
    expect_near(ex, s.gram, lent(own, all, missing / 200 * match), "gram");
    expect_near(ex, s.cross, lent(outer(taken(full, rows), taken(x, rows)), all_cross, missing / 200 * match), "cross");
  }
}

TEST_F(Experts, AnExpertWithoutTokensGetsItsLayersStatistics) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  open(1);  // two experts see the token
  ExpertInputs seen(ex, *op, weights, each(1, false), false, 3);
  const auto linear = [&](const std::string& name) -> const Linear& { return weights.linears.at(name); };
  const std::vector<int64_t> tokens = seen.tokens();
  const std::vector<double> all = outer(x, x);
  std::vector<double> activations(static_cast<size_t>(op->down.in_features * op->down.in_features));
  for (int e = 0; e < op->experts; ++e) {
    if (tokens[static_cast<size_t>(e)] == 0) continue;
    const Tensor act = expert_activation(ex, *op, e, linear, x);
    activations = lent(activations, outer(act, act), 1);
  }
  for (int e = 0; e < op->experts; ++e) {
    if (tokens[static_cast<size_t>(e)] > 0) continue;
    const InputStats s = seen.of_input(e, {}), a = seen.of_activation(e, {}, linear);
    EXPECT_EQ(s.borrowed, s.tokens);
    EXPECT_TRUE(s.cross.empty());
    expect_near(ex, s.gram, lent(std::vector<double>(all.size()), all, 2.0 * static_cast<double>(op->hidden)), "input");
    const double factor = 2.0 * static_cast<double>(op->down.in_features) / 2;  // two tokens in the pool
    expect_near(ex, a.gram, lent(std::vector<double>(activations.size()), activations, factor), "activation");
  }
}

// Neither the portions in which rows come nor the experts of a wave are seen in the sums.
TEST_F(Experts, SumsDoNotDependOnChunksOrWaves) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  open(5000);
  const InputRounding rounded{.activations = ActQuant::tensor, .percentile = 99};
  const auto linear = [&](const std::string& name) -> const Linear& { return weights.linears.at(name); };
  ExpertInputs whole(ex, *op, weights, each(5000), true, op->experts), cut(ex, *op, weights, each(300), true, 3);
  for (const InputRounding& r : {InputRounding{}, rounded})
    for (int e = 0; e < op->experts; ++e) {
      const InputStats a = whole.of_input(e, r), b = cut.of_input(e, r);
      EXPECT_EQ(first_difference(a.gram, b.gram), "") << e;
      EXPECT_EQ(first_difference(a.cross, b.cross), "") << e;
      EXPECT_EQ(a.input_scale, b.input_scale) << e;
    }
  for (int e = 0; e < op->experts; ++e) {
    const InputStats a = whole.of_activation(e, rounded, linear), b = cut.of_activation(e, rounded, linear);
    EXPECT_EQ(first_difference(a.gram, b.gram), "") << e;
    EXPECT_EQ(first_difference(a.cross, b.cross), "") << e;
    EXPECT_EQ(a.input_scale, b.input_scale) << e;
  }
}

struct Case {
  const char *model, *recipe;
};

class MoeRun : public ::testing::TestWithParam<Case> {
 protected:
  std::string folder() const { return std::string("goldens/models/") + GetParam().model; }
  // Relative difference in perplexity between the packed kernels and the dequantized weights, without the
  // tokens that are the furthest apart: those that a near tie of two experts sent elsewhere. Sequences are
  // short, so that such a token has few followers.
  static double perplexity_difference(Exec& ex, const Checkpoint& c) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 4096; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + i / 64 * 31) % c.spec.vocab));
    const auto losses = [&](Weights w) { return Runner(ex, c, {.dtype = DType::bf16, .weights = w}).nll(ids, 1024); };
    const std::vector<float> a = losses(Weights::packed), b = losses(Weights::reference);
    std::vector<double> diff;
    for (size_t i = 0; i < a.size(); ++i) diff.push_back(a[i] - b[i]);
    std::sort(diff.begin(), diff.end(), [](double x, double y) { return std::fabs(x) < std::fabs(y); });
    diff.resize(static_cast<size_t>(static_cast<double>(diff.size()) * (1 - tol::kReroutedPacked)));
    return std::fabs(std::exp(std::accumulate(diff.begin(), diff.end(), 0.0) / static_cast<double>(diff.size())) - 1);
  }
};

TEST_P(MoeRun, WritesWhatItSaysAndResumesToTheSameBytes) {
  FEWBIT_NEEDS_REFERENCE(folder() + "/golden.safetensors");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder()));
  const Tensor ids = Golden(folder() + "/golden.safetensors").get("input_ids");
  const Windows windows =
      windows_from_ids({ids.as<int32_t>(), ids.as<int32_t>() + ids.numel()}, ids.rows(), ids.cols(), "golden");
  const QuantPlan plan = make_plan(c, {.base = parse_recipe(GetParam().recipe), .tokens = ids.numel()});
  EXPECT_TRUE(plan.refusals.empty());
  const bool calibrated = plan.needs != Needs::nothing;
  const Windows calibration = calibrated ? windows : Windows{};
  const TempDir dir;
  QuantJob job{.recipe = GetParam().recipe, .out = dir / "whole"};
  const QuantReport whole = run_pipeline(ex, c, plan, calibration, job);
  EXPECT_EQ(whole.linears.size(), linears_of(c.spec).size());

  const VerifyResult checked = verify(ex, job.out);
  EXPECT_TRUE(checked.ok()) << (checked.ok() ? "" : checked.problems[0].linear + checked.problems[0].what);
  EXPECT_EQ(checked.linears, static_cast<int64_t>(whole.linears.size()));
  const Checkpoint packed = Checkpoint::open(job.out);
  EXPECT_LE(perplexity_difference(ex, packed), tol::kPackedPerplexity);

  const Moe& op = moe_of(c.spec);
  EXPECT_EQ(whole.experts.size(), calibrated ? static_cast<size_t>(c.spec.layers) : 0u);
  for (const ExpertRecord& layer : whole.experts) {
    EXPECT_EQ(layer.tokens.size(), static_cast<size_t>(op.experts));
    EXPECT_EQ(std::accumulate(layer.tokens.begin(), layer.tokens.end(), int64_t{0}), ids.numel() * op.top_k);
    EXPECT_EQ(layer.starved.size(), static_cast<size_t>(op.experts)) << "96 tokens cannot feed anybody";
  }
  for (const LinearRecord& r : whole.linears)
    if (calibrated && r.name.find("layers.1.") != std::string::npos && r.name.find("experts.") != std::string::npos) {
      const auto e = static_cast<size_t>(std::stoi(r.name.substr(r.name.find("experts.") + 8)));
      EXPECT_EQ(r.tokens, whole.experts[1].tokens[e]) << r.name;
    }

  job.out = dir / "resumed";
  int asked = 0;
  job.stop_requested = [&] { return ++asked > 1; };
  EXPECT_THROW(run_pipeline(ex, c, plan, calibration, job), Error);
  job.stop_requested = {};
  job.resume = true;
  const QuantReport resumed = run_pipeline(ex, c, plan, calibration, job);
  EXPECT_EQ(bytes_of_file(dir / "resumed/model.safetensors"), bytes_of_file(dir / "whole/model.safetensors"));
  ASSERT_EQ(resumed.experts.size(), whole.experts.size());
  for (size_t i = 0; i < whole.experts.size(); ++i) EXPECT_EQ(resumed.experts[i].tokens, whole.experts[i].tokens);
  const auto json = nlohmann::json::parse(bytes_of_file(dir / "resumed/quant_report.json"));
  EXPECT_EQ(json.at("experts").size(), whole.experts.size());
}

INSTANTIATE_TEST_SUITE_P(Goldens, MoeRun,
                         ::testing::Values(Case{"qwen3-moe", "rtn int4 g64"}, Case{"qwen3-moe", "gptq int4 g128"},
                                           Case{"qwen3-moe", "gptq int3 g64"}, Case{"qwen3-moe", "awq int4 g64"},
                                           Case{"qwen3-moe", "smoothquant"}, Case{"mixtral", "rtn int4 g128"},
                                           Case{"mixtral", "gptq int4 g128"}, Case{"mixtral", "awq+gptq int4 g128"}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.model) + "_" + info.param.recipe;
                           for (char& ch : name)
                             if (ch == '-' || ch == ' ' || ch == '+') ch = '_';
                           return name;
                         });

TEST(Moe, ErrorFeedbackOfTheExpertsBeatsPlainRounding) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/mixtral/golden.safetensors");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference("goldens/models/mixtral"));
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 32 * 64; ++i) ids.push_back((i * 7919 + i / 64 * 31) % 384);
  const TempDir dir;
  const QuantPlan plan = make_plan(c, {.base = parse_recipe("gptq int3 g128 effort=reference"), .tokens = 2048});
  const QuantReport r =
      run_pipeline(ex, c, plan, windows_from_ids(ids, 32, 64, "made"), {.recipe = "gptq", .out = dir / "out"});
  int better = 0, experts = 0;
  for (const LinearRecord& l : r.linears) {
    if (l.name.find("experts.") == std::string::npos) continue;
    ++experts;
    better += l.loss < l.loss_rtn;
  }
  EXPECT_EQ(experts, 2 * 4 * 3);
  EXPECT_EQ(better, experts);
}

}  // namespace
}  // namespace fewbit::test
