#include "kernels/quantize/refine.h"

#include "kernels/quantize/choose_scales.h"
#include "kernels/quantize/round_to_grid.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

struct State {
  int64_t out = 20, in = 300, group = 64;
  int bits = 4;
  bool symmetric = true, scattered = false;
};

// A plainly rounded linear on a device, to be improved.
class Coded {
 public:
  Coded(Exec& ex, const State& s, uint64_t seed) : ex_(ex), s_(s), groups_((s.in + s.group - 1) / s.group) {
    target = random_normal(DType::f32, {s.out, s.in}, seed, 0.05f);
    h = correlated_gram(s.in, 150, seed + 1);
    hd = damped(h, 0.01f * mean_diagonal(h));
    for (int64_t i = 0; i < s.in * s.in; ++i) h.as<float>()[i] = static_cast<float>(hd[static_cast<size_t>(i)]);
    hd = widened(h);
    dt_ = ex.to_device(target);
    dh_ = ex.to_device(h);
    scales = ex.alloc(DType::f32, {s.out, groups_});
    codes = ex.alloc(DType::u8, {s.out, s.in});
    if (!s.symmetric) zeros = ex.alloc(DType::u8, {s.out, groups_});
    choose_scales(ex, dt_, {}, s.group, default_search(s.bits, s.symmetric, ScaleRule::absmax), scales, zeros);
    if (s.scattered) {
      Tensor g = Tensor::host(DType::i32, {s.in});
      for (int64_t i = 0; i < s.in; ++i) g.as<int32_t>()[i] = static_cast<int32_t>(i * 5 % groups_);
      group_of = ex.to_device(g);
    }
    round_to_grid(ex, dt_, view());
  }
  RefineArgs args() const { return {.target = dt_, .h = dh_}; }
  MutableCodedView view() const {
    return {.codes = codes, .scales = scales, .zeros = zeros, .group_of = group_of, .bits = s_.bits, .group = s_.group};
  }
  double loss() const {
    const Tensor q = ex_.alloc(DType::f32, {s_.out, s_.in});
    dequantize(ex_, read_only(view()), q);
    return trace_loss(target, ex_.to_host(q), hd);
  }
  Tensor target{}, h{}, scales{}, codes{}, zeros{}, group_of{};
  Matrix hd{};

 private:
  Exec& ex_;
  State s_;
  int64_t groups_;
  Tensor dt_{}, dh_{};
};

std::vector<State> states() {
  return {{},
          {.group = 128},
          {.group = 300},
          {.in = 130, .group = 48, .bits = 3},
          {.bits = 4, .symmetric = false},
          {.group = 100, .scattered = true},
          {.group = 64, .bits = 8, .symmetric = false, .scattered = true},
          {.out = 70, .in = 1100, .group = 128},
          {.out = 300, .in = 512, .group = 128},  // from here on whole tiles of 128 columns
          {.out = 130, .in = 384, .group = 64, .bits = 8, .symmetric = false, .scattered = true},
          {.out = 40, .in = 256, .group = 32, .symmetric = false}};
}

FEWBIT_DEVICE_TEST(Refine, EveryStepLowersTheLoss) {
  for (const State& s : states()) {
    Coded q(ex, s, 11);
    const double start = q.loss();
    refit_scales(ex, q.args(), q.view());
    const double refitted = q.loss();
    EXPECT_LT(refitted, start);
    descend_codes(ex, q.args(), q.view());
    const double descended = q.loss();
    EXPECT_LT(descended, 0.9 * refitted);
    for (int round = 0; round < 3; ++round) {
      const double before = q.loss();
      refit_scales(ex, q.args(), q.view());
      const double between = q.loss();
      descend_codes(ex, q.args(), q.view());
      EXPECT_LE(between, before * (1 + tol::kF32Op));
      EXPECT_LE(q.loss(), between * (1 + tol::kF32Op));
    }
  }
}

// After enough passes no single code can be improved: the definition of the descent's fixed point.
FEWBIT_DEVICE_TEST(Refine, DescentEndsWhereNoCodeCanImprove) {
  const State s{.out = 3, .in = 140, .group = 64};
  Coded q(ex, s, 5);
  for (int i = 0; i < 60; ++i) descend_codes(ex, q.args(), q.view());
  const Tensor codes = ex.to_host(q.codes), scales = ex.to_host(q.scales);
  for (int64_t o = 0; o < s.out; ++o) {
    std::vector<double> delta(static_cast<size_t>(s.in));
    for (int64_t i = 0; i < s.in; ++i)
      delta[static_cast<size_t>(i)] = q.target.as<float>()[o * s.in + i] -
                                      (codes.as<uint8_t>()[o * s.in + i] - 8.0) * scales.as<float>()[o * 3 + i / 64];
    for (int64_t j = 0; j < s.in; ++j) {
      double p = 0;
      for (int64_t i = 0; i < s.in; ++i) p += delta[static_cast<size_t>(i)] * q.hd[static_cast<size_t>(i * s.in + j)];
      const double hjj = q.hd[static_cast<size_t>(j * s.in + j)];
      for (int step : {-1, 1}) {
        const int code = codes.as<uint8_t>()[o * s.in + j] + step;
        if (code < 0 || code > 15) continue;
        const double change = step * static_cast<double>(scales.as<float>()[o * 3 + j / 64]);
        EXPECT_LT(change * (2 * p - change * hjj), tol::kLossIdentity * change * change * hjj);
      }
    }
  }
}

// The refit is the least-squares solution: scales that were spoiled come back.
FEWBIT_DEVICE_TEST(Refine, RefitRecoversTheScalesThatMadeTheTarget) {
  for (const State& s :
       {State{.group = 100}, State{.group = 100, .scattered = true}, State{.out = 150, .in = 384, .group = 128},
        State{.in = 256, .group = 64, .scattered = true}, State{.in = 256, .group = 32, .symmetric = false}}) {
    Coded q(ex, s, 8);
    const Tensor values = ex.alloc(DType::f32, {s.out, s.in});
    dequantize(ex, read_only(q.view()), values);
    const Tensor truth = ex.to_host(q.scales);
    Tensor spoiled = clone_host(truth);
    for (int64_t i = 0; i < spoiled.numel(); ++i)
      spoiled.as<float>()[i] = representable_scale(spoiled.as<float>()[i] * 1.3f, DType::f16);
    RefineArgs args = q.args();
    args.target = values;
    const Tensor scales = ex.to_device(spoiled);
    MutableCodedView view = q.view();
    view.scales = scales;
    refit_scales(ex, args, view);
    EXPECT_EQ(first_difference(ex.to_host(scales), truth), "");
    // Nothing is left to gain: the codes stay.
    const Tensor before = ex.to_host(q.codes);
    descend_codes(ex, args, view);
    EXPECT_EQ(first_difference(ex.to_host(q.codes), before), "");
  }
}

FEWBIT_DEVICE_TEST(Refine, AGroupOfZeroLevelsKeepsItsScale) {
  const State s{.group = 100};
  Coded q(ex, s, 9);
  Tensor codes = ex.to_host(q.codes);
  for (int64_t i = 100; i < 200; ++i) codes.as<uint8_t>()[i] = 8;
  const Tensor before = ex.to_host(q.scales);
  const Tensor changed = ex.to_device(codes);
  MutableCodedView view = q.view();
  view.codes = changed;
  refit_scales(ex, q.args(), view);
  const Tensor after = ex.to_host(q.scales);
  EXPECT_EQ(after.as<float>()[1], before.as<float>()[1]);
  EXPECT_NE(after.as<float>()[0], before.as<float>()[0]);
}

}  // namespace
}  // namespace fewbit
