// The column loop of GPTQ: the CPU half. Blocks of rows are independent and each belongs to one thread.
#include "kernels/quantize/error_feedback.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/grids/f8_grid.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/group_search.h"
#include "kernels/quantize/tile_inverse.h"
#include "src/core/hot.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kRows = 32;

// Errors of the columns walked so far, every candidate's side by side.
struct Trial {
  float error[kTileCols][kMaxCandidates];
};

// The sum of e^2 that each candidate would have over live[0, n); u: the group's square of U_BB, its rows ld apart;
// stays: 0 for columns that get the level 0, else 1.
FEWBIT_HOT void try_candidates(const float* live, const float* stays, const float* u, int64_t ld, int64_t n,
                               const Candidates& c, Trial& t, float* total) {
  constexpr int kLanes = 32;
  static_assert(kMaxCandidates % kLanes == 0);
  for (int first = 0; first < c.count; first += kLanes) {
    float sum[kLanes] = {};
    for (int64_t j = 0; j < n; ++j) {
      float w[kLanes];
      for (int k = 0; k < kLanes; ++k) w[k] = live[j];
      for (int64_t i = 0; i < j; ++i)
        for (int k = 0; k < kLanes; ++k) w[k] -= t.error[i][first + k] * u[i * ld + j];
      const float inverse_diagonal = 1.f / u[j * ld + j], stay = stays[j];
      for (int k = 0; k < kLanes; ++k) {
        const int at = first + k;
        const float level = stay * round_even(clamp_to(w[k] * c.inverse[at], c.lo[at], c.hi[at]));
        const float e = (w[k] - level * c.scale[at]) * inverse_diagonal;
        t.error[j][at] = e;
        sum[k] += e * e;
      }
    }
    std::copy_n(sum, kLanes, total + first);
  }
}

// ScaleRule::loop_grid for one group. likely: live, with 0 where a weight is likely not to stay, or live itself.
GridChoice search_by_loop(const float* live, const float* likely, const float* u, int64_t ld, int64_t n,
                          const ScaleSearch& search) {
  Candidates c = list_candidates(likely, n, search);
  float stays[kTileCols];
  for (int64_t j = 0; j < n; ++j) stays[j] = likely == live || likely[j] != 0 ? 1.f : 0.f;
  for (int k = c.count; k < kMaxCandidates; ++k) c.scale[k] = c.inverse[k] = c.lo[k] = c.hi[k] = 0;
  Trial trial;
  float total[kMaxCandidates];
  try_candidates(live, stays, u, ld, n, c, trial, total);
  return c.choice[std::min_element(total, total + c.count) - total];
}

// One block of rows on its way through the tiles.
class RowBlock {
 public:
  RowBlock(const ErrorFeedbackArgs& a, const MutableCodedView& q, TensorView loss)
      : args_(a),
        w_(mat<float>(a.w)),
        r_(mat<float>(a.r)),
        h_(a.h_diag.as<float>()),
        q_(q),
        f8_(q.grid == Grid::f8_e4m3),
        loss_(loss.as<double>()) {}

  void run(int64_t begin, int64_t end, const std::vector<ColumnTile>& tiles, const std::vector<float>& inverse) {
    first_ = begin;
    rows_ = end - begin;
    delta_.assign(static_cast<size_t>(rows_ * w_.cols), 0.f);
    std::fill(loss_ + begin, loss_ + end, 0.0);
    for (size_t t = 0; t < tiles.size(); ++t) {
      if (spanning_group_starts(tiles[t])) choose_spanning(tiles[t].begin);
      const float* u = inverse.data() + t * kTileCols * kTileCols;
      bring_up_to_date(tiles[t], u);
      for (int64_t o = 0; o < rows_; ++o) walk(o, tiles[t], u);
    }
  }

 private:
  bool fixed() const { return q_.group_of != nullptr; }
  bool spanning_group_starts(const ColumnTile& t) const {
    return !fixed() && q_.group > kTileCols && t.begin % q_.group == 0;
  }

  // x [rows, end - begin] = (W - Q)[:, <begin] R[<begin, begin:end]
  void residual(int64_t begin, int64_t end, std::vector<float>& x) const {
    x.assign(static_cast<size_t>(rows_ * (end - begin)), 0.f);
    if (begin > 0)
      blas::gemm(CblasNoTrans, CblasNoTrans, rows_, end - begin, begin, 1.f, delta_.data(), w_.cols, &r_(0, begin),
                 r_.ld, 0.f, x.data(), end - begin);
  }

  // Scales of a group larger than a tile: live weights of all its columns, live_G = w_G + X_G R_GG^-1.
  void choose_spanning(int64_t begin) {
    const int64_t end = std::min(w_.cols, begin + q_.group), n = end - begin;
    residual(begin, end, x_);
    if (begin > 0) blas::solve_right(CblasUpper, CblasNoTrans, rows_, n, &r_(begin, begin), r_.ld, x_.data(), n);
    for (int64_t o = 0; o < rows_; ++o) {
      float* live = x_.data() + o * n;
      for (int64_t i = 0; i < n; ++i) live[i] += w_(first_ + o, begin + i);
      store_grid(first_ + o, static_cast<int>(begin / q_.group),
                 search_group(likely(live, begin, n), h_ + begin, n, args_.search));
    }
  }

  void bring_up_to_date(const ColumnTile& t, const float* u) {
    residual(t.begin, t.end, x_);
    live_.resize(static_cast<size_t>(rows_ * t.size()));
    for (int64_t o = 0; o < rows_; ++o) std::copy_n(&w_(first_ + o, t.begin), t.size(), live_.data() + o * t.size());
    if (t.begin > 0)
      blas::gemm(CblasNoTrans, CblasNoTrans, rows_, t.size(), t.size(), 1.f, x_.data(), t.size(), u, kTileCols, 1.f,
                 live_.data(), t.size());
  }

  void store_grid(int64_t row, int g, const GridChoice& c) {
    q_.scales[q_.grid_index(row, g)] = c.scale;
    if (q_.zeros) q_.zeros[q_.grid_index(row, g)] = static_cast<uint8_t>(c.zero);
  }

  // The grid of a group of n columns inside a tile, from its column j on.
  GridChoice choose_inside(const float* live, const float* u, int64_t column, int64_t j, int64_t n) {
    const float* pruned = likely(live + j, column, n);
    if (args_.search.rule == ScaleRule::loop_grid)
      return search_by_loop(live + j, pruned, u + j * kTileCols + j, kTileCols, n, args_.search);
    return search_group(pruned, h_ + column, n, args_.search);
  }

  bool prunes() const { return args_.two_of_four; }
  // The diagonal of the factor at a quad.
  struct Quad {
    float r[4];
  };
  Quad quad_at(int64_t column) const {
    Quad q;
    for (int64_t i = 0; i < 4; ++i) q.r[i] = r_(column + i, column + i);
    return q;
  }

  // n live weights from `column` on, with 0 in the place of those that are likely to be pruned; themselves where
  // nothing is.
  const float* likely(const float* live, int64_t column, int64_t n) {
    if (!prunes()) return live;
    likely_.assign(live, live + n);
    for (int64_t i = 0; i < n; i += 4) {
      float* w = likely_.data() + i;
      const int stay = larger_pair({w[0], w[1], w[2], w[3]}, quad_at(column + i).r);
      for (int64_t k = 0; k < 4; ++k)
        if (!(stay >> k & 1)) w[k] = 0;
    }
    return likely_.data();
  }

  // The ordinary recursion inside a tile.
  void walk(int64_t o, const ColumnTile& t, const float* u) {
    const int64_t row = first_ + o, n = t.size();
    const bool choose = !fixed() && q_.group <= kTileCols;
    float* live = live_.data() + o * n;
    int stay = kWholeQuad;
    for (int64_t j = 0; j < n; ++j) {
      const int column = static_cast<int>(t.begin + j), g = q_.group_at(column);
      if (choose && column % q_.group == 0)
        store_grid(row, g, choose_inside(live, u, column, j, std::min<int64_t>(q_.group, n - j)));
      const int zero = q_.zero(row, g);
      const float scale = q_.scale(row, g);
      if (prunes() && column % 4 == 0)
        stay = larger_pair({live[j], live[j + 1], live[j + 2], live[j + 3]}, quad_at(column).r);
      const bool stays = stay >> (column % 4) & 1;
      const float level = !stays ? 0.f
                          : f8_  ? f8_round(live[j] / scale)
                                 : grid_level(live[j], scale, zero, q_.max_code);
      const float q = level * scale;
      q_.codes[q_.index(row, column)] = f8_ ? f8_code(level) : static_cast<uint8_t>(static_cast<int>(level) + zero);
      delta_[static_cast<size_t>(o * w_.cols + column)] = w_(row, column) - q;
      const float e = (live[j] - q) / u[j * kTileCols + j];
      for (int64_t k = j + 1; k < n; ++k) live[k] -= e * u[j * kTileCols + k];
      loss_[row] += static_cast<double>(e) * e;
    }
  }

  const ErrorFeedbackArgs& args_;
  Mat<const float> w_, r_;
  const float* h_;
  CodedArrays<true> q_;
  bool f8_;
  double* loss_;
  int64_t first_ = 0, rows_ = 0;
  std::vector<float> delta_;     // [rows, in] W - Q
  std::vector<float> x_, live_;  // [rows, columns] of a tile: the residual and the live weights
  std::vector<float> likely_;    // of a group: likely()
};

}  // namespace

void error_feedback(Exec&, const ErrorFeedbackArgs& a, const MutableCodedView& q, TensorView loss) {
  blas::use_one_thread();
  const std::vector<ColumnTile> tiles = column_tiles(a.w.cols(), q.group_of.data ? 0 : q.group);
  const std::vector<float> inverse = invert_tiles(mat<float>(a.r), tiles, kTileCols);
  parallel_for(a.w.rows(), kRows,
               [&](int64_t begin, int64_t end) { RowBlock(a, q, loss).run(begin, end, tiles, inverse); });
}

}  // namespace fewbit::cpu
