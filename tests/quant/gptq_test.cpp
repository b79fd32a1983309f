// GPTQ's own properties: efforts, column orders, shifted targets and the ladder of damping.
#include <cmath>
#include <limits>

#include "kernels/exec/exec_measure.h"
#include "src/quant/methods/gptq_bytes.h"
#include "tests/quant/workbench.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"

namespace fewbit {
namespace {

using namespace test;

FEWBIT_DEVICE_TEST(Gptq, EffortsImproveOnEachOther) {
  Workbench b(ex, 64, 256, 11);
  const auto loss = [&](Effort e, const char* m = "gptq") {
    LinearJob job = b.job(3);
    job.effort = e;
    return method(m).quantize(b.ex, job).loss;
  };
  const double reference = loss(Effort::reference), quick = loss(Effort::quick), standard = loss(Effort::standard);
  EXPECT_LT(reference, loss(Effort::reference, "rtn"));
  EXPECT_LT(quick, reference);
  EXPECT_LT(standard, quick);
  EXPECT_LE(loss(Effort::best), standard);
}

FEWBIT_DEVICE_TEST(Gptq, EveryColumnOrderIsSoundAndBetterThanRounding) {
  for (const ActOrder act : {ActOrder::off, ActOrder::static_groups, ActOrder::gar, ActOrder::full})
    for (const int64_t group : {64, -1})
      for (const bool symmetric : {true, false})
        for (const Effort effort : {Effort::quick, Effort::standard, Effort::reference}) {
          SCOPED_TRACE("order " + std::to_string(static_cast<int>(act)) + " group " + std::to_string(group));
          Workbench b(ex, 30, 300, 12);  // the last group is not full
          LinearJob job = b.job(4, group, symmetric);
          job.act_order = act;
          job.effort = effort;
          const MethodResult r = method("gptq").quantize(b.ex, job);
          EXPECT_EQ(check(r.linear), "");
          EXPECT_EQ(r.linear.group_of.has_value(), act == ActOrder::full && group == 64);
          EXPECT_LT(r.loss, r.loss_rtn);
        }
}

// Sorting has a purpose where columns differ much: the large ones are rounded while all others can still
// help.
FEWBIT_DEVICE_TEST(Gptq, OrdersByImportanceHelpOnUnevenInputs) {
  Workbench b(ex, 48, 256, 13);
  const auto loss = [&](ActOrder act) {
    LinearJob job = b.job(4, 128);
    job.act_order = act;
    job.effort = Effort::reference;
    return method("gptq").quantize(b.ex, job).loss;
  };
  const double off = loss(ActOrder::off);
  EXPECT_LT(loss(ActOrder::static_groups), off);
  EXPECT_LT(loss(ActOrder::full), off);
}

// With both streams at hand the codes aim at the output of the unquantized one.
FEWBIT_DEVICE_TEST(Gptq, ShiftedTargetsLowerTheErrorAgainstTheFullStream) {
  const int64_t out = 16, in = 96, tokens = 400;
  Workbench b(ex, out, in, 14);
  const Tensor x = random_normal(DType::f32, {tokens, in}, 15),
               noise = random_normal(DType::f32, {tokens, in}, 16, 0.3f);
  // The quantized stream: a little smaller, with noise.
  Matrix xq(static_cast<size_t>(tokens * in));
  for (int64_t i = 0; i < tokens * in; ++i) xq[static_cast<size_t>(i)] = 0.9 * x.as<float>()[i] + noise.as<float>()[i];
  Tensor gram = Tensor::host_zeros(DType::f32, {in, in}), cross = Tensor::host_zeros(DType::f32, {in, in});
  for (int64_t i = 0; i < in; ++i)
    for (int64_t j = 0; j < in; ++j) {
      double g = 0, c = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        g += xq[static_cast<size_t>(t * in + i)] * xq[static_cast<size_t>(t * in + j)];
        c += x.as<float>()[t * in + i] * xq[static_cast<size_t>(t * in + j)];
      }
      gram.as<float>()[i * in + j] = static_cast<float>(g);
      cross.as<float>()[i * in + j] = static_cast<float>(c);
    }
  b.stats.tokens = tokens;
  b.stats.gram = b.ex.to_device(gram);
  const auto output_error = [&](const MethodResult& r) {
    const Tensor q = dequantize_reference(r.linear);
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t o = 0; o < out; ++o) {
        double d = 0;
        for (int64_t i = 0; i < in; ++i)
          d += static_cast<double>(b.host_weight.as<float>()[o * in + i]) * x.as<float>()[t * in + i] -
               q.as<float>()[o * in + i] * xq[static_cast<size_t>(t * in + i)];
        sum += d * d;
      }
    return sum;
  };
  LinearJob job = b.job(4, 32);
  const MethodResult plain = method("gptq").quantize(b.ex, job);
  EXPECT_EQ(plain.loss, plain.loss_target);
  b.stats.cross = b.ex.to_device(cross);
  const MethodResult shifted = method("gptq").quantize(b.ex, job);
  EXPECT_LT(output_error(shifted), output_error(plain));
  EXPECT_LT(shifted.loss_target, shifted.loss_target_rtn);
  EXPECT_GT(shifted.loss, plain.loss);  // it does not aim at W
  job.effort = Effort::reference;
  EXPECT_EQ(content_hash(method("gptq").quantize(b.ex, job).linear),
            (b.stats.cross.reset(), content_hash(method("gptq").quantize(b.ex, job).linear)));
}

// --- the ladder ------------------------------------------------------------------------------------------------

Tensor identity(int64_t n, float value) {
  Tensor h = Tensor::host_zeros(DType::f32, {n, n});
  for (int64_t i = 0; i < n; ++i) h.as<float>()[i * n + i] = value;
  return h;
}

std::string rung_of(Workbench& b, const Tensor& gram, float damp, bool allow_rtn = false) {
  b.stats.gram = b.ex.to_device(gram);
  LinearJob job = b.job(4, 32);
  job.damp = damp;
  job.allow_rtn = allow_rtn;
  const MethodResult r = method("gptq").quantize(b.ex, job);
  EXPECT_EQ(check(r.linear), "");
  EXPECT_TRUE(std::isfinite(r.loss) && std::isfinite(r.loss_rtn));
  return r.rung;
}

FEWBIT_DEVICE_TEST(GptqLadder, ReachesTheRungThatTheMatrixNeeds) {
  const int64_t n = 64;
  Workbench b(ex, 8, n, 17);
  EXPECT_EQ(rung_of(b, correlated_gram(n, 200, 1), 0.01f), "fp32");
  EXPECT_EQ(rung_of(b, correlated_gram(n, 20, 1), 0.01f), "fp32");  // rank-deficient: damping is enough

  // Exact in f32, of rank 20 but for 2^-9 on the diagonal: f32 loses the small pivots, f64 keeps them.
  const Tensor x = random_codes({20, n}, 101, 3);
  Tensor h = identity(n, 0x1p-9f);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t t = 0; t < 20; ++t)
        h.as<float>()[i * n + j] +=
            static_cast<float>((x.as<uint8_t>()[t * n + i] - 50) * (x.as<uint8_t>()[t * n + j] - 50));
  EXPECT_EQ(rung_of(b, h, 0.f), "fp64");

  // Indefinite by `excess` of the mean diagonal: needs damping above it.
  const auto indefinite = [&](float excess) {
    Tensor m = identity(n, 1);
    m.as<float>()[3 * n + 4] = m.as<float>()[4 * n + 3] = 1 + excess;
    return m;
  };
  EXPECT_EQ(rung_of(b, indefinite(0.015f), 0.01f), "damp x2");
  EXPECT_EQ(rung_of(b, indefinite(0.045f), 0.01f), "damp x5");
  EXPECT_EQ(rung_of(b, indefinite(0.09f), 0.01f), "damp x10");
  EXPECT_EQ(rung_of(b, indefinite(0.25f), 0.01f), "damp x30");
  EXPECT_EQ(rung_of(b, indefinite(0.8f), 0.01f), "damp x100");
  EXPECT_EQ(rung_of(b, indefinite(3.f), 0.01f), "diagonal");
}

FEWBIT_DEVICE_TEST(GptqLadder, PlainRoundingNeedsPermission) {
  const int64_t n = 64;
  Workbench b(ex, 8, n, 18);
  Tensor nan = identity(n, 1);
  nan.as<float>()[7 * n + 7] = std::numeric_limits<float>::quiet_NaN();
  const Tensor empty = identity(n, 0);
  for (const Tensor* gram : {static_cast<const Tensor*>(&nan), &empty}) {
    EXPECT_EQ(rung_of(b, *gram, 0.01f, true), "rtn");
    try {
      rung_of(b, *gram, 0.01f, false);
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::numeric);
      EXPECT_NE(std::string(e.what()).find("model.layers.0.test"), std::string::npos);
      EXPECT_NE(std::string(e.what()).find("--allow-rtn"), std::string::npos);
    }
  }
  b.stats.tokens = 0;
  EXPECT_THROW(rung_of(b, identity(n, 1), 0.01f, false), Error);
  EXPECT_EQ(rung_of(b, identity(n, 1), 0.01f, true), "rtn");
}

// The Gram matrix is the statistics' own and has another diagonal in between: other linears read it afterwards.
FEWBIT_DEVICE_TEST(Gptq, LeavesTheStatisticsAsTheyWere) {
  for (const ActOrder act : {ActOrder::off, ActOrder::full}) {
    Workbench b(ex, 20, 200, 16);
    Tensor gram = ex.to_host(b.stats.gram);
    for (int64_t i = 0; i < 200; ++i) gram.as<float>()[3 * 200 + i] = gram.as<float>()[i * 200 + 3] = 0;
    b.stats.gram = ex.to_device(gram);
    LinearJob job = b.job(4, 64);
    job.act_order = act;
    const MethodResult first = method("gptq").quantize(b.ex, job);
    EXPECT_EQ(first.rung, "fp32");
    EXPECT_EQ(first_difference(ex.to_host(b.stats.gram), gram), "");
    b.stats.factor = {};
    EXPECT_EQ(first_difference(method("gptq").quantize(b.ex, job).linear.codes, first.linear.codes), "");
  }
}

// What plans promise is what a run takes.
TEST(Gptq, TakesTheMemoryThatItsFormulaSays) {
  Exec ex = Exec::cpu();
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{96, 1024}, {1200, 320}})
    for (const Effort effort : {Effort::reference, Effort::quick, Effort::standard})
      for (const ActOrder act : {ActOrder::off, ActOrder::full})
        for (const bool shifted : {false, true}) {
          Workbench b(ex, out, in, 17);
          if (shifted) b.stats.cross = ex.to_device(ex.to_host(b.stats.gram));
          LinearJob job = b.job(4, 64);
          job.effort = effort;
          job.act_order = act;
          reset_peak(ex);
          const int64_t before = ex.peak_bytes();
          EXPECT_EQ(method("gptq").quantize(ex, job).rung, "fp32");
          const double counted = static_cast<double>(ex.peak_bytes() - before);
          const auto formula = static_cast<double>(
              gptq_bytes(Device::cpu,
                         {.out = out, .in = in, .group = 64, .effort = effort, .act_order = act, .shifted = shifted}));
          EXPECT_LE(counted, formula * tol::kPeakAbove) << out << " " << in << " " << shifted;
          EXPECT_GE(counted, formula * tol::kPeakBelow) << out << " " << in << " " << shifted;
        }
}

}  // namespace
}  // namespace fewbit
