// Refit of scales and descent over codes: the CPU half. Blocks of rows are independent.
#include "kernels/quantize/refine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/wide_product.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/grids/two_of_four.h"
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

// Values of the largest strip of H that a refit needs.
int64_t widest_strip(const GroupOrder& order, int64_t n) {
  int64_t most = 1;
  for (int64_t g = 0; g < order.groups(); ++g)
    most = std::max(most, refit_strip(Device::cpu, order.end(g) - order.begin(g), n));
  return most;
}

// Some rows in a refit, which share the widened rows of H. All matrices are in group order.
class RefitPanel {
 public:
  RefitPanel(Exec& ex, const RefineArgs& a, const CodedArrays<true>& q, const GroupOrder& order, int64_t most)
      : args_(a),
        q_(q),
        order_(order),
        n_(q.in),
        groups_(q.groups),
        level_(ex.alloc(DType::f64, {most, n_})),
        z_(ex.alloc(DType::f64, {most, n_})),
        strip_(ex.alloc(DType::f64, {widest_strip(order, q.in)})),
        target_(ex.alloc(DType::f32, {most, n_})),
        a_(ex.alloc(DType::f64, {most, groups_, groups_})),
        b_(ex.alloc(DType::f64, {most, groups_})) {}

  void run(int64_t first, int64_t rows) {
    parallel_for(rows, kRefitRows, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) gather_row(first + o, level_.as<double>() + o * n_, target(o));
    });
    for (int g = 0; g < q_.groups; ++g) add_equations(g, rows);
    parallel_for(rows, kRefitRows, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        refit_row(a_.as<double>() + o * groups_ * groups_, b_.as<double>() + o * groups_, groups_, args_.scale_dtype,
                  q_.scales + (first + o) * groups_);
    });
  }

 private:
  float* target(int64_t o) { return target_.as<float>() + o * n_; }

  // Levels and targets of one row.
  void gather_row(int64_t row, double* level, float* target) const {
    for (int g = 0; g < q_.groups; ++g)
      for (int64_t k = order_.begin(g); k < order_.end(g); ++k) {
        const int64_t at = q_.index(row, static_cast<int>(order_.column(k)));
        level[k] = q_.codes[at] - q_.zero(row, g);
        target[k] = args_.target.as<float>()[at];
      }
  }

  // Row g of A [G, G] and b [G] of every row's normal equations, from z = C_g H_g.
  void add_equations(int g, int64_t rows) {
    const int64_t start = order_.begin(g), width = order_.end(g) - start;
    double* z = z_.as<double>();
    const auto gather = [&](int64_t i, int64_t j0, int64_t j1, double* to) {
      const float* row = args_.h.as<float>() + order_.column(start + i) * n_;
      for (int64_t j = j0; j < j1; ++j) to[j - j0] = row[order_.column(j)];
    };
    const WideCut cut{.n = n_, .rows = rows, .cols = strip_columns(Device::cpu, width, n_)};
    if (width > 0)
      wide_product(level_.as<double>() + start, n_, rows, kRefitRows, width, cut, gather, strip_.as<double>(), z);
    parallel_for(rows, kRefitRows, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) width > 0 ? add_equation(g, o, z + o * n_) : clear_equation(g, o);
    });
  }

  void clear_equation(int g, int64_t o) {
    std::fill_n(a_.as<double>() + (o * groups_ + g) * groups_, groups_, 0.0);
    b_.as<double>()[o * groups_ + g] = 0;
  }

  void add_equation(int g, int64_t o, const double* z) {
    const double* level = level_.as<double>() + o * n_;
    b_.as<double>()[o * groups_ + g] = std::inner_product(z, z + n_, target(o), 0.0);
    for (int k = 0; k < q_.groups; ++k)
      a_.as<double>()[(o * groups_ + g) * groups_ + k] =
          std::inner_product(z + order_.begin(k), z + order_.end(k), level + order_.begin(k), 0.0);
  }

  const RefineArgs& args_;
  const CodedArrays<true>& q_;
  const GroupOrder& order_;
  int64_t n_, groups_;
  Tensor level_, z_;  // [rows, in] f64: C, and C_g H_g of the group in work
  Tensor strip_;      // f64: rows of H of that group, or a strip of their columns
  Tensor target_;     // [rows, in] f32
  Tensor a_, b_;      // [rows, G, G], [rows, G] f64
};

// One pass of the descent over rows [begin, end); their blocks of columns are brought up to date together.
class Descent {
 public:
  Descent(const RefineArgs& a, const CodedArrays<true>& q)
      : target_(mat<float>(a.target)), h_(mat<float>(a.h)), q_(q), two_of_four_(a.two_of_four) {}

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
      if (two_of_four_ && code == zero && quad_is_full(row, j)) {
        exchange(row, j, t, delta, product);
        continue;
      }
      const float best = grid_level(level * scale + product[j] / hjj, scale, zero, q_.max_code);
      const float change = (best - level) * scale;
      if (!(change * (2 * product[j] - change * hjj) > 0)) continue;
      code = static_cast<uint8_t>(static_cast<int>(best) + zero);
      delta[j] -= change;
      // An exchange looks back at the columns of its quad.
      for (int64_t k = two_of_four_ ? j / 4 * 4 : j + 1; k < t.end; ++k) product[k] -= change * h_(j, k);
    }
  }

  // Whether two codes of the quad of column j are not the zero's.
  bool quad_is_full(int64_t row, int64_t j) const {
    int set = 0;
    for (int64_t k = j / 4 * 4; k < j / 4 * 4 + 4; ++k) set += q_.codes[q_.index(row, static_cast<int>(k))] != q_.mid;
    return set >= 2;
  }

  // Column j, whose code is the zero's, in the place of the one of its quad with which that gains most, if any does.
  void exchange(int64_t row, int64_t j, const ColumnTile& t, float* delta, float* product) {
    const int64_t quad = j / 4 * 4;
    uint8_t* codes = q_.codes + q_.index(row, static_cast<int>(quad));
    const float scale = q_.scale(row, q_.group_at(static_cast<int>(j)));
    QuadExchange best;
    for (int64_t k = quad; k < quad + 4; ++k) {
      if (codes[k - quad] == q_.mid) continue;
      const QuadExchange e =
          quad_exchange({.product = product[j], .diagonal = h_(j, j)}, {.product = product[k], .diagonal = h_(k, k)},
                        h_(j, k), static_cast<float>(codes[k - quad] - q_.mid), scale, q_.mid, q_.max_code);
      if (e.gain > best.gain) best = e, best.other = static_cast<int>(k - quad);
    }
    if (best.other < 0) return;
    const int64_t k = quad + best.other;
    const float gone = -static_cast<float>(codes[best.other] - q_.mid) * scale, came = best.level * scale;
    codes[best.other] = static_cast<uint8_t>(q_.mid);
    codes[j - quad] = static_cast<uint8_t>(static_cast<int>(best.level) + q_.mid);
    delta[k] -= gone;
    delta[j] -= came;
    for (int64_t i = quad; i < t.end; ++i) product[i] -= gone * h_(k, i) + came * h_(j, i);
  }

  Mat<const float> target_, h_;
  const CodedArrays<true>& q_;
  bool two_of_four_;
};

}  // namespace

void refit_scales(Exec& ex, const RefineArgs& args, const MutableCodedView& view) {
  blas::use_one_thread();
  const CodedArrays<true> q(view);
  const GroupOrder order(q.in, q.groups, [&](int64_t i) { return q.group_at(static_cast<int>(i)); });
  const int64_t most = refit_rows(Device::cpu, q.out, q.in, q.groups);
  RefitPanel panel(ex, args, q, order, most);
  for (int64_t first = 0; first < q.out; first += most) panel.run(first, std::min(most, q.out - first));
}

void descend_codes(Exec&, const RefineArgs& args, const MutableCodedView& view) {
  blas::use_one_thread();
  const CodedArrays<true> q(view);
  const std::vector<ColumnTile> tiles = column_tiles(q.in, 0);
  parallel_for(q.out, 32, [&](int64_t begin, int64_t end) { Descent(args, q).run(begin, end, tiles); });
}

}  // namespace fewbit::cpu
