// Refit of scales and descent over codes: the CPU half. Blocks of rows are independent.
#include "kernels/quantize/refine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/choose_scales.h"
#include "kernels/quantize/column_tiles.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// Columns brought together by group: position k holds column order[k]; group g is positions [start[g],
// start[g+1]).
struct GroupOrder {
  std::vector<int64_t> order, start;
};

GroupOrder order_by_group(const RefineArgs& a, int64_t groups) {
  const int64_t n = a.target.cols();
  const auto group = [&](int64_t i) { return a.group_of.data ? a.group_of.as<int32_t>()[i] : i / a.group; };
  GroupOrder o;
  o.order.resize(static_cast<size_t>(n));
  std::iota(o.order.begin(), o.order.end(), 0);
  std::stable_sort(o.order.begin(), o.order.end(), [&](int64_t x, int64_t y) { return group(x) < group(y); });
  o.start.assign(static_cast<size_t>(groups + 1), 0);
  for (int64_t i = 0; i < n; ++i) ++o.start[static_cast<size_t>(group(i) + 1)];
  std::partial_sum(o.start.begin(), o.start.end(), o.start.begin());
  return o;
}

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

// The normal equations of one row; a [G, G] and b [G] are overwritten by their solution. Scales change only
// where the loss falls.
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

}  // namespace

void refit_scales(Exec&, const RefineArgs& args, ConstTensorView codes, TensorView scales) {
  const int64_t out = args.target.rows(), n = args.target.cols(), groups = scales.cols();
  FEWBIT_ASSERT(codes.shape == args.target.shape && scales.rows() == out && args.h.rows() == n && args.group > 0);
  blas::use_one_thread();
  const GroupOrder by_group = order_by_group(args, groups);
  const std::vector<int64_t>&order = by_group.order, &start = by_group.start;
  std::vector<double> h(static_cast<size_t>(n * n));
  parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < n; ++j)
        h[static_cast<size_t>(i * n + j)] =
            args.h.as<float>()[order[static_cast<size_t>(i)] * n + order[static_cast<size_t>(j)]];
  });
  parallel_for(out, 16, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    std::vector<double> level(static_cast<size_t>(rows * n)), target(level.size()), z(level.size());
    std::vector<double> a(static_cast<size_t>(rows * groups * groups)), b(static_cast<size_t>(rows * groups));
    for (int64_t o = 0; o < rows; ++o)
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t k = start[static_cast<size_t>(g)]; k < start[static_cast<size_t>(g + 1)]; ++k) {
          const int64_t at = (begin + o) * n + order[static_cast<size_t>(k)];
          const int zero = args.zeros.data ? args.zeros.as<uint8_t>()[(begin + o) * groups + g] : 1 << (args.bits - 1);
          level[static_cast<size_t>(o * n + k)] = codes.as<uint8_t>()[at] - zero;
          target[static_cast<size_t>(o * n + k)] = args.target.as<float>()[at];
        }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = start[static_cast<size_t>(g)], width = start[static_cast<size_t>(g + 1)] - first;
      if (width == 0) continue;
      blas::gemm(CblasNoTrans, CblasNoTrans, rows, n, width, 1.0, level.data() + first, n, h.data() + first * n, n, 0.0,
                 z.data(), n);
      for (int64_t o = 0; o < rows; ++o) {
        const double *zo = z.data() + o * n, *lo = level.data() + o * n, *to = target.data() + o * n;
        b[static_cast<size_t>(o * groups + g)] = std::inner_product(zo, zo + n, to, 0.0);
        for (int64_t k = 0; k < groups; ++k) {
          const int64_t s = start[static_cast<size_t>(k)], e = start[static_cast<size_t>(k + 1)];
          a[static_cast<size_t>((o * groups + g) * groups + k)] = std::inner_product(zo + s, zo + e, lo + s, 0.0);
        }
      }
    }
    for (int64_t o = 0; o < rows; ++o)
      refit_row(a.data() + o * groups * groups, b.data() + o * groups, groups, args.scale_dtype,
                scales.as<float>() + (begin + o) * groups);
  });
}

void descend_codes(Exec&, const RefineArgs& args, ConstTensorView scales, TensorView codes) {
  const int64_t out = args.target.rows(), n = args.target.cols(), groups = scales.cols();
  FEWBIT_ASSERT(codes.shape == args.target.shape && scales.rows() == out && args.h.rows() == n && args.group > 0);
  blas::use_one_thread();
  const Mat<const float> h = mat<float>(args.h);
  const std::vector<ColumnTile> tiles = column_tiles(n, 0);
  const int max_code = (1 << args.bits) - 1, mid = 1 << (args.bits - 1);
  const int32_t* group_of = args.group_of.data ? args.group_of.as<int32_t>() : nullptr;
  const auto grid_at = [&](int64_t row, int64_t i) {
    const int64_t g = row * groups + (group_of ? group_of[i] : i / args.group);
    return GridChoice{scales.as<float>()[g], args.zeros.data ? args.zeros.as<uint8_t>()[g] : mid};
  };
  parallel_for(out, 32, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    std::vector<float> delta(static_cast<size_t>(rows * n)), product(static_cast<size_t>(rows * kTileCols));
    for (int64_t o = 0; o < rows; ++o)
      for (int64_t i = 0; i < n; ++i) {
        const GridChoice c = grid_at(begin + o, i);
        const int level = codes.as<uint8_t>()[(begin + o) * n + i] - c.zero;
        delta[static_cast<size_t>(o * n + i)] =
            args.target.as<float>()[(begin + o) * n + i] - static_cast<float>(level) * c.scale;
      }
    for (const ColumnTile& t : tiles) {
      blas::gemm(CblasNoTrans, CblasNoTrans, rows, t.size(), n, 1.f, delta.data(), n, &h(0, t.begin), n, 0.f,
                 product.data(), kTileCols);
      for (int64_t o = 0; o < rows; ++o)
        for (int64_t j = t.begin; j < t.end; ++j) {
          const GridChoice c = grid_at(begin + o, j);
          uint8_t& code = codes.as<uint8_t>()[(begin + o) * n + j];
          float* p = product.data() + o * kTileCols - t.begin;
          const float level = static_cast<float>(code - c.zero), hjj = h(j, j);
          if (!(hjj > 0)) continue;
          const float best = grid_level(level * c.scale + p[j] / hjj, c.scale, c.zero, max_code);
          const float change = (best - level) * c.scale;
          if (!(change * (2 * p[j] - change * hjj) > 0)) continue;
          code = static_cast<uint8_t>(static_cast<int>(best) + c.zero);
          delta[static_cast<size_t>(o * n + j)] -= change;
          for (int64_t k = j + 1; k < t.end; ++k) p[k] -= change * h(j, k);
        }
    }
  });
}

}  // namespace fewbit::cpu
