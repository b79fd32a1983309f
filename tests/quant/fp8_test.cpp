// FP8 weights: the published scales and codes, and what the search and error feedback gain on the same grid.
#include <cmath>

#include "src/quant/method.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

const QuantSpec kChannel{.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .scale_dtype = DType::f32};

struct Bench {
  Exec& ex;
  Tensor host_weight, weight;
  InputStats stats{};

  Bench(Exec& on, int64_t out, int64_t in) : ex(on), host_weight(random_normal(DType::f32, {out, in}, 1, 0.05f)) {
    weight = ex.to_device(host_weight);
    stats.tokens = 500;
    stats.gram = ex.to_device(correlated_gram(in, 400, 2));
  }
  MethodResult run(const char* name, const QuantSpec& spec, Effort effort = Effort::standard,
                   ActOrder order = ActOrder::off) {
    return method(name).quantize(ex, {.name = "model.layers.0.test",
                                      .weight = weight,
                                      .stats = &stats,
                                      .spec = spec,
                                      .effort = effort,
                                      .act_order = order});
  }
};

FEWBIT_DEVICE_TEST(Fp8, PerChannelIsTheGolden) {
  FEWBIT_NEEDS_REFERENCE("goldens/packing_reference.safetensors");
  const Golden golden("goldens/packing_reference.safetensors");
  const Tensor weight = to_f32(golden.get("fp8.per_channel.weight")),
               scales = to_f32(golden.get("fp8.per_channel.weight_scale"));
  const Tensor codes = golden.get("fp8.per_channel.weight_fp8");

  const Tensor device = ex.to_device(weight);
  const MethodResult r =
      method("fp8").quantize(ex, {.name = "golden", .weight = device, .spec = kChannel, .effort = Effort::reference});
  ASSERT_EQ(r.linear.scales.numel(), scales.numel());
  for (int64_t o = 0; o < scales.numel(); ++o) {
    if (scales.as<float>()[o] < 1e-11f) continue;  // a row of zeros: the golden has its library's floor, we have 1
    EXPECT_FLOAT_EQ(r.linear.scales.as<float>()[o], scales.as<float>()[o]) << o;
  }
  int64_t different = 0;
  for (int64_t i = 0; i < codes.numel(); ++i)
    different += r.linear.codes.as<uint8_t>()[i] != static_cast<const uint8_t*>(codes.view().data)[i];
  EXPECT_EQ(different, 0);
}

FEWBIT_DEVICE_TEST(Fp8, EveryGranularityIsSoundAndErrorFeedbackHelps) {
  Bench b(ex, 200, 256);
  for (const auto& [out_group, group] : {std::pair<int64_t, int64_t>{1, -1}, {1, 128}, {128, 128}, {200, -1}})
    for (const char* name : {"fp8", "gptq"}) {
      QuantSpec spec = kChannel;
      spec.out_group = out_group;
      spec.group = group;
      const MethodResult r = b.run(name, spec);
      EXPECT_EQ(check(r.linear), "") << name << " " << spec.str();
      EXPECT_EQ(r.linear.spec, spec);
      EXPECT_LE(r.loss, r.loss_rtn) << name << " " << spec.str();
      const double plain = b.run("fp8", spec, Effort::reference).loss;
      EXPECT_NEAR(plain, r.loss_rtn, tol::kF32Product * plain);
      EXPECT_EQ(content_hash(b.run(name, spec).linear), content_hash(r.linear)) << "the same bits twice";
    }
}

FEWBIT_DEVICE_TEST(Fp8, ErrorFeedbackBeatsRounding) {
  Bench b(ex, 64, 256);
  const double rounded = b.run("fp8", kChannel).loss;
  EXPECT_LT(b.run("gptq", kChannel).loss, 0.8 * rounded);
  EXPECT_LT(b.run("gptq", kChannel, Effort::standard, ActOrder::static_groups).loss, 0.8 * rounded);
}

TEST(Fp8, OtherGridsAreRefusedInWords) {
  Exec ex = Exec::cpu();
  Bench b(ex, 16, 64);
  for (const auto& [name, spec] : {std::pair<const char*, QuantSpec>{"fp8", {}}, {"rtn", kChannel}}) try {
      b.run(name, spec);
      FAIL() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(e.what()).find("not to " + spec.str()), std::string::npos) << e.what();
    }
}

}  // namespace
}  // namespace fewbit
