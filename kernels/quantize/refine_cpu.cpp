// Refit of scales and descent over codes: the CPU half. Blocks of rows are independent.
#include "kernels/quantize/refine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/group_order.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// s^T A s - 2 s^T b: the loss up to a constant of the row.
double quadratic(const double* a, const double* b, const double* s, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    double as = 0;
    for (int64_t j = 0; j < n; ++j) as += a[i * n + j] * s[j];
    sum += s[i] * (as - 2 * b[i]);
  }
  return sum;
}

// The scales of one row from its normal equations a s = b, a [G, G] and b [G]; they change only where the loss falls.
void refit_row(double* a, double* b, int64_t groups, DType scale_dtype, float* scales) {
  const std::vector<double> old(scales, scales + groups);
  // A group whose levels are all zero has no say: its scale stays.
  for (int64_t g = 0; g < groups; ++g)
    if (a[g * groups + g] == 0) {
      a[g * groups + g] = 1;
      b[g] = old[static_cast<size_t>(g)];
    }
  std::vector<double> factor(a, a + groups * groups), solved(b, b + groups);
  if (blas::potrf_lower(static_cast<int>(groups), factor.data(), static_cast<int>(groups)) != 0) return;
  blas::solve_right(CblasLower, CblasTrans, 1, groups, factor.data(), groups, solved.data(), groups);
  blas::solve_right(CblasLower, CblasNoTrans, 1, groups, factor.data(), groups, solved.data(), groups);
  for (double& s : solved) {
    s = stored_scale(static_cast<float>(s), scale_dtype);
    if (!std::isfinite(s)) return;
  }
  if (quadratic(a, b, solved.data(), groups) < quadratic(a, b, old.data(), groups))
    std::copy(solved.begin(), solved.end(), scales);
}

// A refit in work: H in group order, in f64, and what all rows share.
struct Refit {
  const RefineArgs& args;
  const CodedArrays<true> q;
  const GroupOrder order;
  std::vector<double> h;  // [in, in]

  Refit(const RefineArgs& a, const MutableCodedView& view)
      : args(a), q(view), order(q.in, q.groups, [this](int32_t i) { return q.group_at(i); }) {
    const int64_t n = q.in;
    h.resize(static_cast<size_t>(n * n));
    parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = 0; j < n; ++j)
          h[static_cast<size_t>(i * n + j)] = a.h.as<float>()[order.column(i) * n + order.column(j)];
    });
  }

  // Levels and targets of one row in group order.
  void gather_row(int64_t row, double* level, double* target) const {
    for (int g = 0; g < q.groups; ++g)
      for (int64_t k = order.begin(g); k < order.end(g); ++k) {
        const int64_t at = q.index(row, static_cast<int>(order.column(k)));
        level[k] = q.codes[at] - q.zero(row, g);
        target[k] = args.target.as<float>()[at];
      }
  }

  // Row g of the matrix a [G, G] and of the right side b [G] of a row's normal equations, from z = C_g H_g.
  void add_equation(int g, const double* z, const double* level, const double* target, double* a, double* b) const {
    b[g] = std::inner_product(z, z + q.in, target, 0.0);
    for (int k = 0; k < q.groups; ++k)
      a[g * q.groups + k] = std::inner_product(z + order.begin(k), z + order.end(k), level + order.begin(k), 0.0);
  }

  // Rows [begin, end), whose products with H are made together.
  void run(int64_t begin, int64_t end) const {
    const int64_t rows = end - begin, n = q.in, groups = q.groups;
    std::vector<double> level(static_cast<size_t>(rows * n)), target(level.size()), z(level.size());
    std::vector<double> a(static_cast<size_t>(rows * groups * groups)), b(static_cast<size_t>(rows * groups));
    for (int64_t o = 0; o < rows; ++o) gather_row(begin + o, level.data() + o * n, target.data() + o * n);
    for (int g = 0; g < q.groups; ++g) {
      const int64_t first = order.begin(g), width = order.end(g) - first;
      if (width == 0) continue;
      blas::gemm(CblasNoTrans, CblasNoTrans, rows, n, width, 1.0, level.data() + first, n, h.data() + first * n, n, 0.0,
                 z.data(), n);
      for (int64_t o = 0; o < rows; ++o)
        add_equation(g, z.data() + o * n, level.data() + o * n, target.data() + o * n, a.data() + o * groups * groups,
                     b.data() + o * groups);
    }
    for (int64_t o = 0; o < rows; ++o)
      refit_row(a.data() + o * groups * groups, b.data() + o * groups, groups, args.scale_dtype,
                q.scales + (begin + o) * groups);
  }
};

// One pass of the descent over rows [begin, end); their blocks of columns are brought up to date together.
class Descent {
 public:
  Descent(const RefineArgs& a, const CodedArrays<true>& q)
      : target_(mat<float>(a.target)), h_(mat<float>(a.h)), q_(q) {}

  void run(int64_t begin, int64_t end, const std::vector<ColumnTile>& tiles) {
    const int64_t rows = end - begin, n = q_.in;
    std::vector<float> delta(static_cast<size_t>(rows * n)), product(static_cast<size_t>(rows * kTileCols));
    for (int64_t o = 0; o < rows; ++o)
      for (int i = 0; i < q_.in; ++i)
        delta[static_cast<size_t>(o * n + i)] = target_(begin + o, i) - q_.value(begin + o, i);
    for (const ColumnTile& t : tiles) {
      blas::gemm(CblasNoTrans, CblasNoTrans, rows, t.size(), n, 1.f, delta.data(), n, &h_(0, t.begin), n, 0.f,
                 product.data(), kTileCols);
      for (int64_t o = 0; o < rows; ++o)
        descend(begin + o, t, delta.data() + o * n, product.data() + o * kTileCols - t.begin);
    }
  }

 private:
  // The columns of one tile in one row; delta: T - Q, product: (T - Q) H, both indexed by column.
  void descend(int64_t row, const ColumnTile& t, float* delta, float* product) {
    for (int64_t j = t.begin; j < t.end; ++j) {
      const int g = q_.group_at(static_cast<int>(j)), zero = q_.zero(row, g);
      const float scale = q_.scale(row, g);
      uint8_t& code = q_.codes[q_.index(row, static_cast<int>(j))];
      const float level = static_cast<float>(code - zero), hjj = h_(j, j);
      if (!(hjj > 0)) continue;
      const float best = grid_level(level * scale + product[j] / hjj, scale, zero, q_.max_code);
      const float change = (best - level) * scale;
      if (!(change * (2 * product[j] - change * hjj) > 0)) continue;
      code = static_cast<uint8_t>(static_cast<int>(best) + zero);
      delta[j] -= change;
      for (int64_t k = j + 1; k < t.end; ++k) product[k] -= change * h_(j, k);
    }
  }

  Mat<const float> target_, h_;
  const CodedArrays<true>& q_;
};

}  // namespace

void refit_scales(Exec&, const RefineArgs& args, const MutableCodedView& q) {
  blas::use_one_thread();
  const Refit refit(args, q);
  parallel_for(refit.q.out, 16, [&](int64_t begin, int64_t end) { refit.run(begin, end); });
}

void descend_codes(Exec&, const RefineArgs& args, const MutableCodedView& view) {
  blas::use_one_thread();
  const CodedArrays<true> q(view);
  const std::vector<ColumnTile> tiles = column_tiles(q.in, 0);
  parallel_for(q.out, 32, [&](int64_t begin, int64_t end) { Descent(args, q).run(begin, end, tiles); });
}

}  // namespace fewbit::cpu
