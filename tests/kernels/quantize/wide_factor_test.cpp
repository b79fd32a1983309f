// Factors of systems so wide that a GPU makes them by panels, which processes may share (panel_factor.cuh).
#include <array>
#include <barrier>
#include <thread>
#include <vector>

#include "kernels/quantize/factor.h"
#include "kernels/statistics/gram.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

constexpr int64_t kWide = 8192 + 4096 + 200;  // three panels and a piece, whose last blocks are not whole
constexpr int64_t kWideRows = 300;

// A linear with such an input, on a GPU.
struct WideInput {
  Tensor gram{}, cross{}, weight{};
  float lambda = 0;

  explicit WideInput(Exec& ex) {
    const auto sums = [&](uint64_t seed) {
      Tensor g = ex.alloc_zeros(DType::f32, {kWide, kWide});
      add_gram_half(ex, ex.to_device(random_normal(DType::bf16, {640, kWide}, seed)), g);
      fill_gram_half(ex, g);
      return g;
    };
    gram = sums(1);
    cross = sums(2);
    weight = ex.to_device(random_normal(DType::f32, {kWideRows, kWide}, 3, 0.05f));
    lambda = 0.05f * mean_diagonal(ex.to_host(gram));
  }
};

struct WideResult {
  Tensor target{}, r{};  // in host memory
};
WideResult make_wide(Exec& ex, const WideInput& in, const PanelShare& share) {
  const Tensor target = ex.alloc(DType::f32, {kWideRows, kWide});
  Tensor r;
  EXPECT_TRUE(shift_targets(ex, in.weight, in.cross, in.gram, in.lambda, {}, 1, target, share, &r).ok());
  return {ex.to_host(target), ex.to_host(r)};
}

TEST(WideFactor, CudaPanelsMakeTheLibrarysFactor) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const WideInput in(ex);
  const Tensor r = ex.alloc(DType::f32, {kWide, kWide});
  ASSERT_TRUE(factorize(ex, in.gram, in.lambda, Precision::f64, r).ok());
  EXPECT_LT(relative_error(make_wide(ex, in, {}).r, ex.to_host(r)), tol::kF32Product);
}

TEST(WideFactor, CudaFailureNamesTheMinor) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  WideInput in(ex);
  Tensor gram = ex.to_host(in.gram);
  constexpr int64_t kBad = 100;  // the last panel's, for the matrix is factored from its end
  gram.as<float>()[kBad * (kWide + 1)] = -1e9f;
  const Tensor target = ex.alloc(DType::f32, {kWideRows, kWide});
  const auto pivot = [&] {
    return shift_targets(ex, in.weight, in.cross, ex.to_device(gram), in.lambda, {}, 1, target).pivot;
  };
  EXPECT_EQ(pivot(), kWide - kBad);
  gram.as<float>()[5000 * (kWide + 1)] = -1e9f;
  EXPECT_EQ(pivot(), kWide - 5000);
  gram.as<float>()[7] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(pivot(), 1);
}

// Two threads stand for two processes, each with an Exec of its own.
TEST(WideFactor, CudaProcessesThatShareItHaveTheBitsOfOne) {
  FEWBIT_NEEDS_GPU();
  Exec first = Exec::cuda(0), second = Exec::cuda(0);
  const WideInput in(first);
  first.sync();
  const WideResult alone = make_wide(first, in, {});
  std::array<TensorView, 2> shown;
  std::barrier both(2);
  std::array<WideResult, 2> made;
  const auto work = [&](int rank, Exec& mine) {
    const auto gather = [&, rank](Exec& ex, TensorView all, std::span<const int64_t> begin) {
      const auto other = static_cast<size_t>(1 - rank);
      ex.sync();
      shown[static_cast<size_t>(rank)] = all;
      both.arrive_and_wait();
      const auto of = [&](TensorView t) { return t.row_range(begin[other], begin[other + 1]); };
      if (begin[other] < begin[other + 1]) ex.copy(of(shown[other]), of(all));
      ex.sync();
      both.arrive_and_wait();
    };
    made[static_cast<size_t>(rank)] = make_wide(mine, in, {.rank = rank, .size = 2, .gather_rows = gather});
  };
  std::thread other([&] { work(1, second); });
  work(0, first);
  other.join();
  for (const WideResult& m : made) {
    EXPECT_EQ(first_difference(m.r, alone.r), "");
    EXPECT_EQ(first_difference(m.target, alone.target), "");
  }
}

}  // namespace
}  // namespace fewbit
