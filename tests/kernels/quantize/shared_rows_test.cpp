// Some rows of a linear alone have the bits that they have among all others, in every op on the way of its rows: ranks
// share the rows of a linear (src/quant/row_share.h).
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/products/dequantize.h"
#include "kernels/quantize/error_feedback.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/refine.h"
#include "kernels/statistics/gram_loss.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

struct Rows {
  int64_t out = 0, in = 0, group = 128;
  int bits = 4;
  bool symmetric = true, two_of_four = false;
};

// Of widths that are no multiples of what an op takes at a time; on a GPU of many rows as well, for which libraries
// have other kernels than for few.
std::vector<Rows> cases(bool many) {
  std::vector<Rows> all{{.out = 320, .in = 300, .group = 64},
                        {.out = 300, .in = 135, .group = 45, .bits = 3, .symmetric = false},
                        {.out = 200, .in = 520, .group = 260, .symmetric = false},
                        {.out = 192, .in = 256, .group = 64, .two_of_four = true}};
  if (many) {
    all.push_back({.out = 4200, .in = 2304});
    all.push_back({.out = 8192, .in = 1024, .group = 64, .symmetric = false});
    all.push_back({.out = 3000, .in = 1300, .group = 512});
  }
  return all;
}

// The input that all rows share, and the weight.
struct Given {
  Rows shape{};
  Tensor gram{}, damped{}, cross{}, diag{}, factor{}, weight{}, more{};

  Given(Exec& ex, const Rows& s) : shape(s) {
    const Tensor h = correlated_gram(s.in, 150, 11), other = correlated_gram(s.in, 150, 12);
    const float lambda = 0.01f * mean_diagonal(h);
    Tensor mended = clone_host(h), mixed = clone_host(h);
    for (int64_t i = 0; i < s.in; ++i) mended.as<float>()[i * (s.in + 1)] += lambda;
    for (int64_t i = 0; i < h.numel(); ++i) mixed.as<float>()[i] += 0.1f * other.as<float>()[i];
    gram = ex.to_device(h);
    damped = ex.to_device(mended);
    cross = ex.to_device(mixed);
    diag = ex.to_device(diagonal_of(h));
    factor = ex.alloc(DType::f32, {s.in, s.in});
    EXPECT_TRUE(factorize(ex, gram, lambda, Precision::f64, factor).ok());
    weight = ex.to_device(random_normal(DType::f32, {s.out, s.in}, 13, 0.05f));
    more = ex.to_device(random_normal(DType::f32, {s.out, s.in}, 14, 1.f));
  }
};

// What the ops make of rows [begin, end), in host memory, by name.
using Made = std::vector<std::pair<const char*, Tensor>>;

void add_losses(Exec& ex, const Given& g, ConstTensorView target, const MutableCodedView& q, Made& made) {
  const Tensor values = ex.alloc(DType::f32, target.shape), loss = ex.alloc(DType::f64, {target.rows()});
  dequantize(ex, read_only(q), values);
  for (const LossSums sums : {LossSums::f64, LossSums::f32, LossSums::reported}) {
    gram_loss(ex, target, values, g.gram, loss, sums);
    made.emplace_back("losses", ex.to_host(loss));
  }
}

Made make(Exec& ex, const Given& g, int64_t begin, int64_t end) {
  const Rows& s = g.shape;
  const int64_t rows = end - begin, groups = (s.in + s.group - 1) / s.group;
  const ConstTensorView w = g.weight.view().row_range(begin, end);
  Made made;
  const Tensor target = ex.alloc(DType::f32, w.shape), apart = ex.alloc(DType::f32, w.shape);
  EXPECT_TRUE(shift_targets(ex, w, g.cross, g.gram, 1, g.more.view().row_range(begin, end), 0.75f, target).ok());
  made.emplace_back("target", ex.to_host(target));
  if (ex.on_cuda()) {  // elsewhere linears have no matrix together
    const Tensor m = ex.alloc(DType::f32, g.gram.shape());
    EXPECT_TRUE(shift_matrix(ex, g.cross, g.gram, 1, 0.75f, m).ok());
    apply_shift(ex, w, m, apart);
    made.emplace_back("target by a matrix", ex.to_host(apart));
  }
  Tensor codes = ex.alloc(DType::u8, w.shape), scales = ex.alloc(DType::f32, {rows, groups}), zeros;
  if (!s.symmetric) zeros = ex.alloc(DType::u8, {rows, groups});
  const MutableCodedView q{.codes = codes, .scales = scales, .zeros = zeros, .bits = s.bits, .group = s.group};
  const Tensor loss = ex.alloc(DType::f64, {rows});
  error_feedback(ex,
                 {.w = target,
                  .r = g.factor,
                  .h_diag = g.diag,
                  .search = default_search(s.bits, s.symmetric, ScaleRule::diag_grid),
                  .two_of_four = s.two_of_four},
                 q, loss);
  made.emplace_back("loss of the loop", ex.to_host(loss));
  made.emplace_back("codes of the loop", ex.to_host(codes));
  made.emplace_back("scales of the loop", ex.to_host(scales));
  for (int round = 0; round < 2; ++round) {
    const RefineArgs args{.target = target, .h = g.damped, .two_of_four = s.two_of_four};
    refit_scales(ex, args, q);
    made.emplace_back("refitted scales", ex.to_host(scales));
    descend_codes(ex, args, q);
    made.emplace_back("descended codes", ex.to_host(codes));
  }
  add_losses(ex, g, target, q, made);
  return made;
}

FEWBIT_DEVICE_TEST(SharedRows, HaveTheBitsThatTheyHaveAmongAllOthers) {
  for (const Rows& s : cases(ex.on_cuda())) {
    SCOPED_TRACE(std::to_string(s.out) + " x " + std::to_string(s.in) + " g" + std::to_string(s.group));
    const Given given(ex, s);
    const Made whole = make(ex, given, 0, s.out);
    const std::vector<int64_t> cuts = s.out > 2000 ? std::vector<int64_t>{0, 64, 192, s.out / 128 * 64, s.out}
                                                   : std::vector<int64_t>{0, 64, 128, s.out};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Made part = make(ex, given, cuts[i], cuts[i + 1]);
      for (size_t k = 0; k < whole.size(); ++k) {
        const ConstTensorView right = whole[k].second.view().row_range(cuts[i], cuts[i + 1]), found = part[k].second;
        EXPECT_EQ(std::memcmp(right.data, found.data, static_cast<size_t>(right.bytes())), 0)
            << whole[k].first << " of rows " << cuts[i] << " to " << cuts[i + 1];
      }
    }
  }
}

}  // namespace
}  // namespace fewbit
