// Properties that every method of the registry has, and GPTQ's own: column orders and the ladder.
#include <cmath>
#include <limits>

#include "src/core/parallel.h"
#include "src/quant/method.h"
#include "src/quant/rounding.h"
#include "tests/kernels/quantize/quantizer_fixture.h"

namespace fewbit {
namespace {

using namespace test;

// One linear with statistics on a device.
struct Workbench {
  Exec ex;
  Tensor host_weight{}, weight{};
  InputStats stats{};

  Workbench(const std::string& backend, int64_t out, int64_t in, uint64_t seed) : ex(Exec::from_name(backend)) {
    set(random_normal(DType::f32, {out, in}, seed, 0.05f));
    stats.tokens = 500;
    stats.gram = ex.to_device(correlated_gram(in, 150, seed + 1));
  }
  void set(Tensor w) {
    host_weight = std::move(w);
    weight = ex.to_device(host_weight);
  }
  LinearJob job(int bits = 4, int64_t group = 128, bool symmetric = true) const {
    LinearJob j{.name = "model.layers.0.test", .weight = weight, .stats = &stats};
    j.spec = {.bits = bits, .group = group, .symmetric = symmetric};
    return j;
  }
};

const Effort kEfforts[] = {Effort::quick, Effort::standard, Effort::best, Effort::reference};

// For every method of integer grids, on every back end (fp8_test.cpp has the others).
template <class F>
void for_all(F&& f) {
  for (const Method* m : methods()) {
    if (!m->grids.integer) continue;
    for (const std::string& backend : backends()) {
      SCOPED_TRACE(std::string(m->name) + " on " + backend);
      f(*m, backend);
    }
  }
}

TEST(Methods, LookupListsWhatExists) {
  EXPECT_EQ(method("gptq").name, "gptq");
  try {
    method("gtpq");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("gtpq"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("rtn"), std::string::npos);
  }
}

TEST(Methods, ResultsAreSoundForEverySpec) {
  for_all([](const Method& m, const std::string& backend) {
    Workbench b(backend, 17, 200, 1);
    for (const int bits : {2, 3, 4, 5, 6, 7, 8})
      for (const int64_t group : {32, 48, 128, 256, -1})
        for (const bool symmetric : {true, false}) {
          const MethodResult r = m.quantize(b.ex, b.job(bits, group, symmetric));
          EXPECT_EQ(check(r.linear), "") << bits << " " << group;
          EXPECT_EQ(r.linear.spec, b.job(bits, group, symmetric).spec);
          EXPECT_TRUE(r.linear.codes.shape() == (Shape{17, 200}));
        }
  });
}

TEST(Methods, NeverWorseThanPlainRounding) {
  for_all([](const Method& m, const std::string& backend) {
    Workbench b(backend, 40, 260, 2);
    for (const Effort effort : kEfforts)
      for (const bool symmetric : {true, false})
        for (const int bits : {3, 4}) {
          LinearJob job = b.job(bits, 64, symmetric);
          job.effort = effort;
          const MethodResult r = m.quantize(b.ex, job);
          EXPECT_GT(r.loss, 0);
          EXPECT_LE(r.loss, r.loss_rtn);
          const double truth =
              trace_loss(b.host_weight, dequantize_reference(r.linear), widened(b.ex.to_host(b.stats.gram))) / 500;
          EXPECT_NEAR(r.loss, truth, tol::kF32Op * truth);
          job.effort = Effort::reference;
          EXPECT_EQ(method("rtn").quantize(b.ex, job).loss, r.loss_rtn);
        }
  });
}

TEST(Methods, SameBitsOnEveryRunAndThreadCount) {
  for_all([](const Method& m, const std::string& backend) {
    Workbench b(backend, 70, 300, 3);
    const std::string first = content_hash(m.quantize(b.ex, b.job()).linear);
    EXPECT_EQ(content_hash(m.quantize(b.ex, b.job()).linear), first);
    if (backend != "cpu") return;
    // Inside a parallel loop nested loops run inline: the same work on one thread.
    std::vector<std::string> hashes(2);
    parallel_for(2, 1, [&](int64_t begin, int64_t) {
      Exec ex = Exec::cpu();
      hashes[static_cast<size_t>(begin)] = content_hash(m.quantize(ex, b.job()).linear);
    });
    EXPECT_EQ(hashes[0], first);
    EXPECT_EQ(hashes[1], first);
  });
}

// Codes that touch the ends of the grid, made values, come back with the same values and no loss.
TEST(Methods, IdealEncodingsComeBack) {
  for_all([](const Method& m, const std::string& backend) {
    for (const bool symmetric : {true, false}) {
      Workbench b(backend, 12, 256, 4);
      QuantizedLinear ideal;
      ideal.spec = {.bits = 4, .group = 64, .symmetric = symmetric};
      ideal.codes = random_codes({12, 256}, 16, 5);
      ideal.scales = Tensor::host(DType::f32, {12, 4});
      if (!symmetric) ideal.zeros = random_codes({12, 4}, 16, 6);
      for (int64_t i = 0; i < 48; ++i) ideal.scales.as<float>()[i] = 0.0078125f * static_cast<float>(1 + i % 5);
      for (int64_t o = 0; o < 12; ++o)
        for (int64_t g = 0; g < 4; ++g) {
          ideal.codes.as<uint8_t>()[o * 256 + g * 64 + 3] = 0;
          ideal.codes.as<uint8_t>()[o * 256 + g * 64 + 7] = 15;
        }
      b.set(dequantize_reference(ideal));
      LinearJob job = b.job(4, 64, symmetric);
      // The plain symmetric rule does not look for these grids (it clips by half a step); the searched ones
      // hold 1.0.
      job.effort = symmetric ? Effort::standard : Effort::reference;
      const MethodResult r = m.quantize(b.ex, job);
      EXPECT_LT(relative_error(dequantize_reference(r.linear), b.host_weight), tol::kIdealEncoding);
      EXPECT_LT(r.loss, tol::kIdealEncoding * r.loss_rtn + 1e-12);
    }
  });
}

TEST(Methods, ZeroRowsDeadColumnsAndOutliers) {
  for_all([](const Method& m, const std::string& backend) {
    const int64_t out = 9, in = 150;  // not a multiple of the group
    Workbench b(backend, out, in, 6);
    Tensor w = clone_host(b.host_weight), h = b.ex.to_host(b.stats.gram);
    for (int64_t i = 0; i < in; ++i) {
      w.as<float>()[2 * in + i] = 0;                              // a row of zeros
      h.as<float>()[5 * in + i] = h.as<float>()[i * in + 5] = 0;  // two inputs never seen
      h.as<float>()[149 * in + i] = h.as<float>()[i * in + 149] = 0;
    }
    w.as<float>()[4 * in + 17] = 3000.f;  // one giant
    b.set(std::move(w));
    b.stats.gram = b.ex.to_device(h);
    for (const Effort effort : kEfforts)
      for (const bool symmetric : {true, false}) {
        LinearJob job = b.job(4, 64, symmetric);
        job.effort = effort;
        const MethodResult r = m.quantize(b.ex, job);
        EXPECT_EQ(check(r.linear), "");
        const Tensor q = dequantize_reference(r.linear);
        for (int64_t i = 0; i < in; ++i) EXPECT_EQ(q.as<float>()[2 * in + i], 0.f);
        EXPECT_TRUE(std::isfinite(r.loss));
        EXPECT_NEAR(q.as<float>()[4 * in + 17], 3000.f, 0.5f * 3000.f);
        if (m.name == "gptq") {
          EXPECT_EQ(r.rung, "fp32");
          EXPECT_LE(r.loss, r.loss_rtn);
          for (int64_t o = 0; o < out; ++o) EXPECT_EQ(q.as<float>()[o * in + 5], 0.f);
        }
      }
  });
}

TEST(Methods, WeightsThatAreNoNumbersAreRefusedByName) {
  for_all([](const Method& m, const std::string& backend) {
    Workbench b(backend, 4, 64, 7);
    Tensor w = clone_host(b.host_weight);
    w.as<float>()[9] = std::numeric_limits<float>::quiet_NaN();
    b.set(std::move(w));
    try {
      m.quantize(b.ex, b.job());
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::checkpoint);
      EXPECT_NE(std::string(e.what()).find("model.layers.0.test"), std::string::npos);
    }
  });
}

TEST(Rtn, NeedsNoStatistics) {
  for (const std::string& backend : backends()) {
    Workbench b(backend, 8, 128, 8);
    LinearJob job = b.job();
    job.stats = nullptr;
    const MethodResult r = method("rtn").quantize(b.ex, job);
    EXPECT_EQ(check(r.linear), "");
    EXPECT_EQ(r.rung, "");
    EXPECT_EQ(r.loss, 0);
  }
}

// int4 g128 on N(0, 1): the plain rule 2 max|w| / 15 gives 19.1 dB, max/7 18.6, a searched scale more. The
// window tells which rule is in force, and fails on a broken rounding as well as on a tensor compared with
// itself.
TEST(Rtn, NoiseOfThePlainRule) {
  for (const std::string& backend : backends()) {
    Workbench b(backend, 64, 1024, 9);
    b.set(random_normal(DType::f32, {64, 1024}, 10));
    LinearJob job = b.job();
    job.stats = nullptr;
    const auto sqnr = [&](Effort e) {
      job.effort = e;
      return -20 *
             std::log10(relative_error(dequantize_reference(method("rtn").quantize(b.ex, job).linear), b.host_weight));
    };
    EXPECT_GT(sqnr(Effort::reference), tol::kRtnSqnrLow);
    EXPECT_LT(sqnr(Effort::reference), tol::kRtnSqnrHigh);
    EXPECT_GT(sqnr(Effort::standard), tol::kRtnSqnrHigh);
  }
}

TEST(Gptq, EffortsImproveOnEachOther) {
  for (const std::string& backend : backends()) {
    Workbench b(backend, 64, 256, 11);
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
}

TEST(Gptq, EveryColumnOrderIsSoundAndBetterThanRounding) {
  for (const std::string& backend : backends())
    for (const ActOrder act : {ActOrder::off, ActOrder::static_groups, ActOrder::gar, ActOrder::full})
      for (const int64_t group : {64, -1})
        for (const bool symmetric : {true, false})
          for (const Effort effort : {Effort::quick, Effort::standard, Effort::reference}) {
            SCOPED_TRACE(backend + " order " + std::to_string(static_cast<int>(act)) + " group " +
                         std::to_string(group));
            Workbench b(backend, 30, 300, 12);  // the last group is not full
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
TEST(Gptq, OrdersByImportanceHelpOnUnevenInputs) {
  for (const std::string& backend : backends()) {
    Workbench b(backend, 48, 256, 13);
    const auto loss = [&](ActOrder act) {
      LinearJob job = b.job(4, 128);
      job.act_order = act;
      job.effort = Effort::reference;
      return method("gptq").quantize(b.ex, job).loss;
    };
    const double off = loss(ActOrder::off);
    EXPECT_LT(loss(ActOrder::static_groups), off) << backend;
    EXPECT_LT(loss(ActOrder::full), off) << backend;
  }
}

// With both streams at hand the codes aim at the output of the unquantized one.
TEST(Gptq, ShiftedTargetsLowerTheErrorAgainstTheFullStream) {
  for (const std::string& backend : backends()) {
    const int64_t out = 16, in = 96, tokens = 400;
    Workbench b(backend, out, in, 14);
    const Tensor x = random_normal(DType::f32, {tokens, in}, 15),
                 noise = random_normal(DType::f32, {tokens, in}, 16, 0.3f);
    // The quantized stream: a little smaller, with noise.
    Matrix xq(static_cast<size_t>(tokens * in));
    for (int64_t i = 0; i < tokens * in; ++i)
      xq[static_cast<size_t>(i)] = 0.9 * x.as<float>()[i] + noise.as<float>()[i];
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
    EXPECT_LT(output_error(shifted), output_error(plain)) << backend;
    EXPECT_LT(shifted.loss_target, shifted.loss_target_rtn);
    EXPECT_GT(shifted.loss, plain.loss);  // it does not aim at W
    job.effort = Effort::reference;
    EXPECT_EQ(content_hash(method("gptq").quantize(b.ex, job).linear),
              (b.stats.cross.reset(), content_hash(method("gptq").quantize(b.ex, job).linear)));
  }
}

// --- the ladder
// ------------------------------------------------------------------------------------------------------

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

TEST(GptqLadder, ReachesTheRungThatTheMatrixNeeds) {
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    const int64_t n = 64;
    Workbench b(backend, 8, n, 17);
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
}

TEST(GptqLadder, PlainRoundingNeedsPermission) {
  for (const std::string& backend : backends()) {
    const int64_t n = 64;
    Workbench b(backend, 8, n, 18);
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
}

// What the published rule leaves as error, a search undercuts; linears that share an input share the global scale.
TEST(Rtn, FourBitFloats) {
  for (const std::string& backend : backends())
    for (const QuantSpec& spec : {kNvfp4, kMxfp4}) {
      Workbench b(backend, 48, 128, 5);
      LinearJob job = b.job();
      job.spec = spec;
      const MethodResult r = method_rtn.quantize(b.ex, job);
      EXPECT_EQ(check(r.linear), "") << spec.str();
      EXPECT_LT(r.loss, r.loss_rtn) << spec.str();
      EXPECT_GT(r.loss, 0);
      const Tensor values = b.ex.to_host(values_of(b.ex, r.linear, DType::f32));
      EXPECT_EQ(first_difference(values, dequantize_reference(r.linear)), "");
      if (!spec.two_level()) continue;
      job.shared_absmax = 1.f;  // 1 / 2688 and no more than twice that
      const double global = *method_rtn.quantize(b.ex, job).linear.global_scale;
      EXPECT_EQ(global, 0x1p-11);
      EXPECT_LT(*r.linear.global_scale, global);
      job.stats = nullptr;
      EXPECT_EQ(method_rtn.quantize(b.ex, job).loss, 0);
    }
}

}  // namespace
}  // namespace fewbit
