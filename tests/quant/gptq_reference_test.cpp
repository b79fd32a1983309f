// The published GPTQ, by its own numbers: relative output errors of the reference implementation and of its
// plain rounding on three small linears (goldens/gptq_reference.safetensors).
#include <cmath>

#include "kernels/products/dequantize.h"
#include "src/quant/method.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit {
namespace {

using test::Golden;

struct Case {
  const char* name;
  int bits;
  int64_t group;      // of the published GPTQ
  int64_t rtn_group;  // of its RTN figure
};

class GptqReference : public test::CasesOnDevices<Case> {
 protected:
  // ||(W - Q) X^T|| / ||W X^T|| on the activations themselves, in f64.
  static double output_error(const Tensor& w, const QuantizedLinear& q, const Tensor& x) {
    const Tensor values = dequantize_reference(q);
    const int64_t out = w.rows(), in = w.cols();
    double diff = 0, norm = 0;
    for (int64_t t = 0; t < x.rows(); ++t)
      for (int64_t o = 0; o < out; ++o) {
        double y = 0, e = 0;
        for (int64_t i = 0; i < in; ++i) {
          const double a = x.as<float>()[t * in + i], v = w.as<float>()[o * in + i];
          y += a * v;
          e += a * (v - static_cast<double>(values.as<float>()[o * in + i]));
        }
        diff += e * e;
        norm += y * y;
      }
    return std::sqrt(diff / norm);
  }
};

TEST_P(GptqReference, MeetsThePublishedErrors) {
  FEWBIT_NEEDS_REFERENCE("goldens/gptq_reference.safetensors");
  const Case c = the_case();
  const Golden golden("goldens/gptq_reference.safetensors");
  const auto get = [&](const char* what) { return test::to_f32(golden.get(std::string(c.name) + "." + what)); };
  const Tensor w = get("weight"), x = get("x"), published = get("rel_error_gptq_rtn");
  Exec ex = exec();
  InputStats stats;
  stats.tokens = x.rows();
  stats.gram = ex.to_device(get("hessian"));
  const Tensor weight = ex.to_device(w);
  LinearJob job{.name = "golden", .weight = weight, .stats = &stats, .effort = Effort::reference};
  job.spec = {.bits = c.bits, .group = c.group, .scale_dtype = DType::f32};

  const MethodResult reference = method("gptq").quantize(ex, job);
  const double gptq = output_error(w, reference.linear, x);
  EXPECT_LE(gptq, published.as<float>()[0] * (1 + tol::kPublishedError));
  EXPECT_EQ(reference.rung, "fp32");
  EXPECT_LT(reference.loss, reference.loss_rtn);

  job.spec.group = c.rtn_group;
  const double rtn = output_error(w, method("rtn").quantize(ex, job).linear, x);
  EXPECT_NEAR(rtn, published.as<float>()[1], tol::kPublishedError * rtn);

  job.spec.group = c.group;
  job.effort = Effort::standard;
  const double improved = output_error(w, method("gptq").quantize(ex, job).linear, x);
  EXPECT_LT(improved, published.as<float>()[0]);
  EXPECT_LT(improved, gptq);
  RecordProperty(device() + "_gptq", std::to_string(gptq));
  RecordProperty(device() + "_default", std::to_string(improved));
  RecordProperty(device() + "_published", std::to_string(published.as<float>()[0]));
}

INSTANTIATE_TEST_SUITE_P(
    Published, GptqReference,
    ::testing::Combine(::testing::Values(Case{"a", 4, 128, 128}, Case{"b", 4, -1, -1}, Case{"c", 3, 128, 64}),
                       test::every_device()),
    [](const auto& info) { return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace fewbit
