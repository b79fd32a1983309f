// The column loop and the descent on grids of levels. Blocks of rows are independent and each belongs to one thread.
#include "kernels/quantize/level_feedback.h"

#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/grids/fp4_grid.h"
#include "kernels/quantize/tile_inverse.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kRows = 32;

// Columns that are brought up to date together: a whole number of blocks.
int64_t strip_of(const LevelGrid& g) { return std::max(g.block, kTileCols); }

std::vector<ColumnTile> strips_of(const LevelGrid& g, int64_t in) {
  std::vector<ColumnTile> strips;
  for (int64_t b = 0; b < in; b += strip_of(g)) strips.push_back({b, std::min(in, b + strip_of(g))});
  return strips;
}

// The arrays of a coded linear, and what a code is worth.
struct Coded {
  const LevelGrid& g;
  uint8_t* codes;
  float *d, *dmin, *scales, *mins;
  int64_t in;

  Coded(const LevelGrid& grid, const LevelCodes& q)
      : g(grid),
        codes(q.codes.as<uint8_t>()),
        d(q.d.as<float>()),
        dmin(grid.most_min > 0 ? q.dmin.as<float>() : nullptr),
        scales(q.scales.as<float>()),
        mins(grid.most_min > 0 ? q.mins.as<float>() : nullptr),
        in(q.codes.cols()) {}

  int64_t block_at(int64_t row, int64_t column) const { return row * (in / g.block) + column / g.block; }
  int64_t sub_at(int64_t row, int64_t column) const { return row * (in / g.sub) + column / g.sub; }
  float step(int64_t row, int64_t column) const { return d[block_at(row, column)] * scales[sub_at(row, column)]; }
  float offset(int64_t row, int64_t column) const {
    return dmin ? -(dmin[block_at(row, column)] * mins[sub_at(row, column)]) : 0.f;
  }
  float level(int64_t row, int64_t column) const { return g.levels[codes[row * in + column]]; }
};

// One block of rows on its way through the strips.
class Walk {
 public:
  Walk(const LevelProblem& p, const LevelGrid& g, const ChooseBlock& choose, const LevelCodes& q, TensorView loss)
      : w_(mat<float>(p.target)), r_(mat<float>(p.r)), q_(g, q), choose_(choose), loss_(loss.as<double>()) {}

  void run(int64_t begin, int64_t end, const std::vector<float>& inverse) {
    first_ = begin;
    rows_ = end - begin;
    delta_.assign(static_cast<size_t>(rows_ * w_.cols), 0.f);
    std::fill(loss_ + begin, loss_ + end, 0.0);
    const int64_t strip = strip_of(q_.g);
    for (int64_t b = 0; b < w_.cols; b += strip) {
      const float* u = inverse.data() + b * strip;
      bring_up_to_date(b, std::min(strip, w_.cols - b), u, strip);
      for (int64_t o = 0; o < rows_; ++o) walk(o, b, std::min(strip, w_.cols - b), u, strip);
    }
  }

 private:
  // live_B = w_B + (W - Q)_{<B} R_{<B,B} U_BB
  void bring_up_to_date(int64_t b, int64_t n, const float* u, int64_t strip) {
    live_.resize(static_cast<size_t>(rows_ * n));
    for (int64_t o = 0; o < rows_; ++o) std::copy_n(&w_(first_ + o, b), n, live_.data() + o * n);
    if (b == 0) return;
    x_.resize(live_.size());
    blas::gemm(CblasNoTrans, CblasNoTrans, rows_, n, b, 1.f, delta_.data(), w_.cols, &r_(0, b), r_.ld, 0.f, x_.data(),
               n);
    blas::gemm(CblasNoTrans, CblasNoTrans, rows_, n, n, 1.f, x_.data(), n, u, strip, 1.f, live_.data(), n);
  }

  // GPTQ's recursion inside a strip.
  void walk(int64_t o, int64_t b, int64_t n, const float* u, int64_t strip) {
    const int64_t row = first_ + o;
    float* live = live_.data() + o * n;
    float step = 0, offset = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t column = b + j;
      if (column % q_.g.block == 0) choose_(row, column / q_.g.block, live + j);
      if (column % q_.g.sub == 0) step = q_.step(row, column), offset = q_.offset(row, column);
      const int code = q_.g.nearest(step != 0 ? (live[j] - offset) / step : 0.f);
      const float value = step * q_.g.levels[static_cast<size_t>(code)] + offset;
      q_.codes[row * w_.cols + column] = static_cast<uint8_t>(code);
      delta_[static_cast<size_t>(o * w_.cols + column)] = w_(row, column) - value;
      const float e = (live[j] - value) / u[j * strip + j];
      for (int64_t k = j + 1; k < n; ++k) live[k] -= e * u[j * strip + k];
      loss_[row] += static_cast<double>(e) * e;
    }
  }

  Mat<const float> w_, r_;
  Coded q_;
  const ChooseBlock& choose_;
  double* loss_;
  int64_t first_ = 0, rows_ = 0;
  std::vector<float> delta_, x_, live_;  // [rows, in] W - Q; [rows, strip] the residual, the live weights
};

// The member of the set nearest to s.
float nearest_scale(const LevelGrid& g, float s) {
  if (g.scale_set == ScaleSet::integers)
    return std::nearbyint(std::clamp(s, static_cast<float>(g.least_scale), static_cast<float>(g.most_scale)));
  const DType type = g.scale_set == ScaleSet::e4m3 ? DType::f8_e4m3 : DType::f8_e8m0;
  const int low = scale_floor(std::max(s, 1e-30f), type), high = std::min(low + 1, largest_scale(type));
  const float below = scale_value(low, type), above = scale_value(high, type);
  return s - below <= above - s ? below : above;
}

// One pass of the descent over some rows. `product` is (T - Q) H of the block in work, kept true with every move.
class Descent {
 public:
  Descent(const LevelProblem& p, const LevelGrid& g, const LevelCodes& q)
      : target_(mat<float>(p.target)), h_(mat<float>(p.h)), q_(g, q), way_(static_cast<size_t>(g.block)) {}

  void run(int64_t begin, int64_t end) {
    const int64_t rows = end - begin, n = target_.cols, width = q_.g.block;
    std::vector<float> delta(static_cast<size_t>(rows * n)), product(static_cast<size_t>(rows * width));
    for (int64_t o = 0; o < rows; ++o)
      for (int64_t i = 0; i < n; ++i)
        delta[static_cast<size_t>(o * n + i)] =
            target_(begin + o, i) - (q_.step(begin + o, i) * q_.level(begin + o, i) + q_.offset(begin + o, i));
    for (int64_t b = 0; b < n; b += width) {
      blas::gemm(CblasNoTrans, CblasNoTrans, rows, width, n, 1.f, delta.data(), n, &h_(0, b), n, 0.f, product.data(),
                 width);
      for (int64_t o = 0; o < rows; ++o) {
        row_ = begin + o, begin_ = b;
        delta_ = delta.data() + o * n + b, product_ = product.data() + o * width;
        move_codes();
        move_scales();
        if (q_.g.moves_d) move_block();
      }
    }
  }

 private:
  void move_codes() {
    for (int64_t j = 0; j < q_.g.block; ++j) {
      const int64_t c = begin_ + j;
      const float step = q_.step(row_, c), offset = q_.offset(row_, c), hjj = h_(c, c);
      if (!(hjj > 0) || step == 0) continue;
      uint8_t& code = q_.codes[row_ * q_.in + c];
      const float now = step * q_.g.levels[code] + offset;
      const int best = q_.g.nearest((now + product_[j] / hjj - offset) / step);
      const float change = step * (q_.g.levels[static_cast<size_t>(best)] - q_.g.levels[code]);
      if (!(change * (2 * product_[j] - change * hjj) > 0)) continue;
      code = static_cast<uint8_t>(best);
      delta_[j] -= change;
      for (int64_t k = 0; k < q_.g.block; ++k) product_[k] -= change * h_(c, begin_ + k);
    }
  }

  // Moves the values of columns [j0, j1) of the block along way_ from `now` of it to the best that `nearest` allows;
  // returns how much of it there is then.
  template <class Nearest>
  float move(int64_t j0, int64_t j1, float now, const Nearest& nearest) {
    double slope = 0, curve = 0;
    for (int64_t j = j0; j < j1; ++j) {
      const float v = way_[static_cast<size_t>(j)];
      if (v == 0) continue;
      slope += static_cast<double>(v) * product_[j];
      const float* h = &h_(begin_ + j, begin_);
      double sum = 0;
      for (int64_t k = j0; k < j1; ++k) sum += static_cast<double>(h[k]) * way_[static_cast<size_t>(k)];
      curve += v * sum;
    }
    if (!(curve > 0)) return now;
    const float next = nearest(now + static_cast<float>(slope / curve));
    const double change = static_cast<double>(next) - now;
    if (!(change * (2 * slope - change * curve) > 0)) return now;
    for (int64_t j = j0; j < j1; ++j) {
      const float moved = static_cast<float>(change) * way_[static_cast<size_t>(j)];
      if (moved == 0) continue;
      delta_[j] -= moved;
      for (int64_t k = 0; k < q_.g.block; ++k) product_[k] -= moved * h_(begin_ + j, begin_ + k);
    }
    return next;
  }

  // Scales and minima of sub-blocks.
  void move_scales() {
    const LevelGrid& g = q_.g;
    if (g.scale_set == ScaleSet::integers && g.least_scale == g.most_scale) return;
    const float d = q_.d[q_.block_at(row_, begin_)], dmin = q_.dmin ? q_.dmin[q_.block_at(row_, begin_)] : 0;
    for (int64_t s = 0; s < g.block; s += g.sub) {
      for (int64_t j = s; j < s + g.sub; ++j) way_[static_cast<size_t>(j)] = d * q_.level(row_, begin_ + j);
      float& scale = q_.scales[q_.sub_at(row_, begin_ + s)];
      scale = move(s, s + g.sub, scale, [&](float v) { return nearest_scale(g, v); });
      if (!q_.mins) continue;
      for (int64_t j = s; j < s + g.sub; ++j) way_[static_cast<size_t>(j)] = -dmin;
      float& min = q_.mins[q_.sub_at(row_, begin_ + s)];
      const auto whole = [&](float v) { return std::nearbyint(std::clamp(v, 0.f, static_cast<float>(g.most_min))); };
      min = move(s, s + g.sub, min, whole);
    }
  }

  // d and dmin, as f16.
  void move_block() {
    const auto stored = [](float v) { return round_to_f16(v); };
    for (int64_t j = 0; j < q_.g.block; ++j)
      way_[static_cast<size_t>(j)] = q_.scales[q_.sub_at(row_, begin_ + j)] * q_.level(row_, begin_ + j);
    float& d = q_.d[q_.block_at(row_, begin_)];
    d = move(0, q_.g.block, d, stored);
    if (!q_.dmin) return;
    for (int64_t j = 0; j < q_.g.block; ++j) way_[static_cast<size_t>(j)] = -q_.mins[q_.sub_at(row_, begin_ + j)];
    float& dmin = q_.dmin[q_.block_at(row_, begin_)];
    dmin = move(0, q_.g.block, dmin, [&](float v) { return stored(std::max(v, 0.f)); });
  }

  Mat<const float> target_, h_;
  Coded q_;
  std::vector<float> way_;  // [block] how the values go with what is moved
  int64_t row_ = 0, begin_ = 0;
  float *delta_ = nullptr, *product_ = nullptr;  // [block] of the row in work
};

}  // namespace

void feed_back_levels(const LevelProblem& p, const LevelGrid& g, const ChooseBlock& choose, const LevelCodes& q,
                      TensorView loss) {
  blas::use_one_thread();
  const std::vector<float> inverse = invert_tiles(mat<float>(p.r), strips_of(g, p.r.cols()), strip_of(g));
  parallel_for(p.target.rows(), kRows,
               [&](int64_t begin, int64_t end) { Walk(p, g, choose, q, loss).run(begin, end, inverse); });
}

void descend_levels(const LevelProblem& p, const LevelGrid& g, const LevelCodes& q) {
  blas::use_one_thread();
  parallel_for(p.target.rows(), kRows, [&](int64_t begin, int64_t end) { Descent(p, g, q).run(begin, end); });
}

}  // namespace fewbit::cpu
