// What the ops around the Gram matrix take at their peak is what their formulas say.
#include "kernels/exec/exec_measure.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/refine.h"
#include "kernels/statistics/gram_loss.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/tolerance.h"

namespace fewbit {
namespace {

using namespace test;

// Bytes that Exec counts at the peak of `work`, besides what was there before.
template <class Work>
int64_t counted(Exec& ex, const Work& work) {
  reset_peak(ex);
  const int64_t before = ex.peak_bytes();
  work();
  return ex.peak_bytes() - before;
}

void expect_formula(const char* op, int64_t out, int64_t n, int64_t counted, int64_t formula) {
  EXPECT_LE(counted, static_cast<double>(formula) * tol::kPeakAbove) << op << " [" << out << ", " << n << "]";
  EXPECT_GE(counted, static_cast<double>(formula) * tol::kPeakBelow) << op << " [" << out << ", " << n << "]";
}

// A Gram matrix is not needed here: diagonally dominant is enough, and quick to make.
Tensor dominant(Exec& ex, int64_t n, uint64_t seed) {
  const Tensor half = random_normal(DType::f32, {n, n}, seed, 0.01f), h = Tensor::host(DType::f32, {n, n});
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      h.as<float>()[i * n + j] = half.as<float>()[i * n + j] + half.as<float>()[j * n + i] + (i == j ? 10.f : 0.f);
  return ex.to_device(h);
}

TEST(WorkingSet, IsWhatTheFormulasSay) {
  Exec ex = Exec::cpu();
  for (const auto& [out, n, group] :
       {std::tuple<int64_t, int64_t, int64_t>{48, 1300, 64}, {130, 600, 600}, {1100, 320, 32}, {20, 1600, 1600}}) {
    const Tensor h = dominant(ex, n, 1), cross = dominant(ex, n, 2), r = ex.alloc(DType::f32, {n, n}),
                 a = ex.to_device(random_normal(DType::f32, {out, n}, 3)),
                 b = ex.to_device(random_normal(DType::f32, {out, n}, 4)), loss = ex.alloc(DType::f64, {out});
    for (const Precision p : {Precision::f32, Precision::f64})
      expect_formula("factorize", out, n, counted(ex, [&] { ASSERT_TRUE(factorize(ex, h, 1, p, r).ok()); }),
                     factor_bytes(n, p));
    const Tensor target = ex.alloc(DType::f32, {out, n});
    expect_formula("shift_targets", out, n,
                   counted(ex, [&] { ASSERT_TRUE(shift_targets(ex, a, cross, h, 1, {}, 1, target).ok()); }),
                   shift_bytes(Device::cpu, out, n));
    expect_formula("gram_loss", out, n, counted(ex, [&] { gram_loss(ex, a, b, h, loss); }),
                   gram_loss_bytes(Device::cpu, out, n));
    const Tensor codes = ex.to_device(random_codes({out, n}, 16, 5)),
                 scales = ex.to_device(random_normal(DType::f32, {out, (n + group - 1) / group}, 6));
    const RefineArgs args{.target = a, .h = h, .scale_dtype = DType::f16};
    const MutableCodedView q{.codes = codes, .scales = scales, .bits = 4, .group = group};
    expect_formula("refine", out, n,
                   counted(ex,
                           [&] {
                             refit_scales(ex, args, q);
                             descend_codes(ex, args, q);
                           }),
                   refine_bytes(Device::cpu, out, n, group));
  }
}

// Of f64 the system alone is whole: what shift_targets takes beside it grows with the inputs, not with their square.
TEST(WorkingSet, NothingButTheSystemIsWhole) {
  const auto beside = [](int64_t n) { return shift_bytes(Device::cpu, 64, n) - 8 * n * n; };
  EXPECT_LT(beside(32768), 4.5 * static_cast<double>(beside(8192)));
  EXPECT_LT(beside(32768), 8 * int64_t{32768} * 32768 / 16);
  EXPECT_LT(shift_bytes(Device::cuda, 8192, 28672), 12 * int64_t{28672} * 28672 + (int64_t{768} << 20));
}

}  // namespace
}  // namespace fewbit
