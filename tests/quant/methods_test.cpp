// Properties that every method of the registry has, and those of plain rounding.
#include <cmath>
#include <limits>

#include "src/core/parallel.h"
#include "src/quant/method.h"
#include "src/quant/rounding.h"
#include "tests/quant/workbench.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

const Effort kEfforts[] = {Effort::quick, Effort::standard, Effort::best, Effort::reference};

// For every method of integer grids (fp8_test.cpp has the others).
template <class F>
void for_all(F&& f) {
  for (const Method* m : methods()) {
    if (!m->grids.integer) continue;
    SCOPED_TRACE(m->name);
    f(*m);
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

FEWBIT_DEVICE_TEST(Methods, ResultsAreSoundForEverySpec) {
  for_all([&](const Method& m) {
    Workbench b(ex, 17, 200, 1);
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

FEWBIT_DEVICE_TEST(Methods, NeverWorseThanPlainRounding) {
  for_all([&](const Method& m) {
    Workbench b(ex, 40, 260, 2);
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
          EXPECT_NEAR(r.loss, truth, (ex.on_cuda() ? tol::kF32Product : tol::kF32Op) * truth);
          job.effort = Effort::reference;
          const double plain = method("rtn").quantize(b.ex, job).loss;
          EXPECT_NEAR(plain, r.loss_rtn, tol::kF32Product * plain);
        }
  });
}

FEWBIT_DEVICE_TEST(Methods, SameBitsOnEveryRunAndThreadCount) {
  for_all([&](const Method& m) {
    Workbench b(ex, 70, 300, 3);
    const std::string first = content_hash(m.quantize(b.ex, b.job()).linear);
    EXPECT_EQ(content_hash(m.quantize(b.ex, b.job()).linear), first);
    if (ex.on_cuda()) return;
    // Inside a parallel loop nested loops run inline: the same work on one thread.
    std::vector<std::string> hashes(2);
    parallel_for(2, 1, [&](int64_t begin, int64_t) {
      Exec own = Exec::cpu();
      Workbench same(own, 70, 300, 3);  // statistics belong to one method at a time
      hashes[static_cast<size_t>(begin)] = content_hash(m.quantize(own, same.job()).linear);
    });
    EXPECT_EQ(hashes[0], first);
    EXPECT_EQ(hashes[1], first);
  });
}

// Codes that touch the ends of the grid, made values, come back with the same values and no loss.
FEWBIT_DEVICE_TEST(Methods, IdealEncodingsComeBack) {
  for_all([&](const Method& m) {
    for (const bool symmetric : {true, false}) {
      Workbench b(ex, 12, 256, 4);
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

FEWBIT_DEVICE_TEST(Methods, ZeroRowsDeadColumnsAndOutliers) {
  for_all([&](const Method& m) {
    const int64_t out = 9, in = 150;  // not a multiple of the group
    Workbench b(ex, out, in, 6);
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

FEWBIT_DEVICE_TEST(Methods, WeightsThatAreNoNumbersAreRefusedByName) {
  for_all([&](const Method& m) {
    Workbench b(ex, 4, 64, 7);
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

FEWBIT_DEVICE_TEST(Rtn, NeedsNoStatistics) {
  Workbench b(ex, 8, 128, 8);
  LinearJob job = b.job();
  job.stats = nullptr;
  const MethodResult r = method("rtn").quantize(b.ex, job);
  EXPECT_EQ(check(r.linear), "");
  EXPECT_EQ(r.rung, "");
  EXPECT_EQ(r.loss, 0);
}

// int4 g128 on N(0, 1): the plain rule 2 max|w| / 15 gives 19.1 dB, max/7 18.6, a searched scale more. The
// window tells which rule is in force, and fails on a broken rounding as well as on a tensor compared with
// itself.
FEWBIT_DEVICE_TEST(Rtn, NoiseOfThePlainRule) {
  Workbench b(ex, 64, 1024, 9);
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

// What the published rule leaves as error, a search undercuts; linears that share an input share the global scale.
FEWBIT_DEVICE_TEST(Rtn, FourBitFloats) {
  for (const QuantSpec& spec : {kNvfp4, kMxfp4}) {
    Workbench b(ex, 48, 128, 5);
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
