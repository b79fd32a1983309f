// The column loop of GPTQ. Rows are independent, columns are not, so the loop runs over tiles of at most 128
// columns:
//   1. cuBLAS brings the residual of earlier columns, X_B = (W - Q)[:, <B] R[<B, B]. Tiles are gathered in strips of
//      some 1024 columns: one wide product per strip covers everything before it, of two bf16 terms of each factor
//      (kernels/device/split_product.cuh), a narrow one in f32 the strip's own tiles. The bits of a row do not depend
//      on the rows beside it.
//   2. One kernel walks the tile (kernels/quantize/error_feedback_walk.cuh) with U_BB = R_BB^-1.
// A group wider than a tile gets its scales before its first tile, from its live weights, which a triangular solve with
// R_GG gives, by its U_BB.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/device/split_product.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/error_feedback.h"
#include "kernels/quantize/error_feedback_walk.cuh"
#include "kernels/quantize/grid_search.cuh"
#include "kernels/quantize/matrix_edit.h"
#include "src/core/mat.h"

namespace fewbit::cuda {
namespace {

using namespace feedback;

// U_BB = R_BB^-1 of every tile by back substitution in f64: a block per tile, a thread per column.
__global__ void __launch_bounds__(kTile)
    invert_tiles_kernel(const float* __restrict__ r,  // [n, n], upper
                        const ColumnTile* __restrict__ tiles,
                        double* __restrict__ work,    // [tiles, 128, 128]
                        float* __restrict__ inverse,  // [tiles, 128, 128], zero outside the triangle
                        int64_t n) {
  const int64_t b = tiles[blockIdx.x].begin;
  const int size = static_cast<int>(tiles[blockIdx.x].end - b), k = threadIdx.x;
  double* x = work + static_cast<int64_t>(blockIdx.x) * kTile * kTile + k;
  float* u = inverse + static_cast<int64_t>(blockIdx.x) * kTile * kTile + k;
  for (int i = kTile - 1; i >= 0; --i) {
    double value = 0;
    if (k < size && i <= k) {
      double sum = i == k ? 1.0 : 0.0;
      for (int j = i + 1; j <= k; ++j) sum -= static_cast<double>(r[(b + i) * n + b + j]) * x[j * kTile];
      value = sum / r[(b + i) * n + b + i];
      x[i * kTile] = value;
    }
    u[i * kTile] = static_cast<float>(value);
  }
}

// live[row, i] = w[row, begin + i] + live[row, i]
__global__ void add_weights_kernel(const float* __restrict__ w, float* __restrict__ live, int64_t in, int64_t begin,
                                   int64_t cols, bool first) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x)
    live[row * cols + i] = w[row * in + begin + i] + (first ? 0.f : live[row * cols + i]);
}

class Loop {
 public:
  Loop(Exec& ex, const ErrorFeedbackArgs& a, const MutableCodedView& q, TensorView loss)
      : ex_(ex),
        s_(ex.cuda_state()),
        a_(a),
        q_(q),
        out_(a.w.rows()),
        in_(a.w.cols()),
        fixed_(q.group_of.data != nullptr),
        tiles_(column_tiles(in_, fixed_ ? 0 : q.group)),
        delta_terms_(ex, in_ > kStripCols ? out_ : 0, in_),
        r_terms_(ex, in_ > kStripCols ? in_ : 0, kStripCols) {
    delta_ = ex.alloc(DType::f32, {out_, in_});
    strip_ = ex.alloc_zeros(DType::f32, {out_, kStripCols});  // the first strip has nothing before it
    invert();
    walk_.q = CodedArrays<true>(q);
    walk_.w = a.w.as<float>();
    walk_.r = a.r.as<float>();
    walk_.h = a.h_diag.as<float>();
    walk_.delta = delta_.as<float>();
    walk_.loss = loss.as<double>();
    walk_.x_ld = kStripCols;
    walk_.candidates = scale_candidates(a.search);
    walk_.choose = !fixed_ && q.group <= kTileCols;
    walk_.search = a.search;
  }

  void run() {
    int64_t strip = 0, before = 0;  // the first columns of this strip and of the one before it
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const ColumnTile& tile = tiles_[t];
      if (!fixed_ && q_.group > kTileCols && tile.begin % q_.group == 0) choose_spanning(t);
      if (t == 0 || tile.end - strip > kStripCols) {
        strip = tile.begin;
        int64_t end = tile.end;
        for (size_t k = t; k < tiles_.size() && tiles_[k].end - strip <= kStripCols; ++k) end = tiles_[k].end;
        before_strip(before, strip, end);
        before = strip;
      }
      inside_strip(strip, tile);
      launch(tile, t, strip);
    }
  }

 private:
  // What all columns before the strip left for its columns, up to `end`; those from `last` on have no terms yet.
  void before_strip(int64_t last, int64_t strip, int64_t end) {
    if (strip == 0) return;
    split(s_, delta_.as<float>() + last, in_, out_, strip - last, delta_terms_.terms().at(0, last));
    split(s_, a_.r.as<float>() + strip, in_, strip, end - strip, r_terms_.terms());
    split_product(s_, delta_terms_.terms(), r_terms_.terms(), out_, strip, end - strip, strip_.as<float>(), kStripCols);
  }

  // What the strip's columns before a tile left for it is added to that.
  void inside_strip(int64_t strip, const ColumnTile& tile) {
    if (strip == tile.begin) return;
    product(mat<float>(delta_).block(0, out_, strip, tile.begin),
            mat<float>(a_.r).block(strip, tile.begin, tile.begin, tile.end),
            {strip_.as<float>() + (tile.begin - strip), out_, tile.size(), kStripCols}, {.beta = 1});
  }

  // c = alpha a b + beta c.
  void product(const Mat<const float>& a, const Mat<const float>& b, const Mat<float>& c, const SplitScale& scale) {
    const RowFactors factors[] = {{a.data, b.data}};
    row_product(s_,
                {.type = CUDA_R_32F,
                 .rows = a.rows,
                 .inner = a.cols,
                 .cols = b.cols,
                 .a_ld = a.ld,
                 .b_ld = b.ld,
                 .c = c.data,
                 .c_ld = c.ld,
                 .alpha = scale.alpha,
                 .beta = scale.beta},
                factors);
  }

  void invert() {
    const int64_t count = static_cast<int64_t>(tiles_.size());
    inverse_ = ex_.alloc(DType::f32, {count, kTile, kTile});
    const Tensor work = ex_.alloc(DType::f64, {count, kTile, kTile});
    static_assert(sizeof(ColumnTile) == 2 * sizeof(int64_t));
    const Tensor list = ex_.to_device(ConstTensorView{tiles_.data(), DType::i64, {count, 2}, {}});
    invert_tiles_kernel<<<static_cast<unsigned>(count), kTile, 0, s_.stream>>>(
        a_.r.as<float>(), reinterpret_cast<const ColumnTile*>(list.as<int64_t>()), work.as<double>(),
        inverse_.as<float>(), in_);
    FEWBIT_CUDA_LAUNCHED();
  }

  // live [out, n] = live R_GG^-1 for the group whose first tile is `index`, tile by tile: what the tiles before one
  // left goes first, then its own columns are multiplied by its U_BB.
  void solve_group(size_t index, const Tensor& live) {
    const int64_t begin = tiles_[index].begin, n = live.cols();
    const Tensor room = ex_.alloc(DType::f32, {out_, kTile});
    for (; index < tiles_.size() && tiles_[index].begin < begin + n; ++index) {
      const ColumnTile& tile = tiles_[index];
      const int64_t at = tile.begin - begin, size = tile.size();
      const Mat<float> here = mat<float>(live).block(0, out_, at, at + size);
      if (at > 0)
        product(mat<float>(live).block(0, out_, 0, at), mat<float>(a_.r).block(begin, tile.begin, tile.begin, tile.end),
                here, {.alpha = -1, .beta = 1});
      const Mat<const float> inverse{inverse_.as<float>() + static_cast<int64_t>(index) * kTile * kTile, size, size,
                                     kTile};
      product(here, inverse, {room.as<float>(), out_, size, kTile}, {});
      FEWBIT_CUDA_CALL(cudaMemcpy2DAsync(here.data, static_cast<size_t>(n) * sizeof(float), room.as<float>(),
                                         kTile * sizeof(float), static_cast<size_t>(size) * sizeof(float),
                                         static_cast<size_t>(out_), cudaMemcpyDeviceToDevice, s_.stream));
    }
  }

  // Scales of the group whose first tile is `index`.
  void choose_spanning(size_t index) {
    const int64_t begin = tiles_[index].begin;
    const int64_t end = std::min(in_, begin + q_.group), n = end - begin;
    const Tensor live = ex_.alloc(DType::f32, {out_, n});
    if (begin > 0) {
      product(mat<float>(delta_).block(0, out_, 0, begin), mat<float>(a_.r).block(0, begin, begin, end),
              mat<float>(live), {});
      solve_group(index, live);
    }
    add_weights_kernel<<<static_cast<unsigned>(out_), 256, 0, s_.stream>>>(a_.w.as<float>(), live.as<float>(), in_,
                                                                           begin, n, begin == 0);
    FEWBIT_CUDA_LAUNCHED();
    if (a_.two_of_four) prune_likely(begin, live);
    const int64_t g = begin / q_.group, groups = q_.scales.cols();
    launch_choose_scales(s_.stream, {.w = live.as<float>(),
                                     .h = a_.h_diag.as<float>() + begin,
                                     .scales = q_.scales.as<float>() + g,
                                     .zeros = q_.zeros.data ? q_.zeros.as<uint8_t>() + g : nullptr,
                                     .rows = out_,
                                     .cols = n,
                                     .w_ld = n,
                                     .grid_ld = groups,
                                     .group = n,
                                     .search = a_.search});
  }

  // 0 in the place of live weights from column `begin` on that are likely to be pruned.
  void prune_likely(int64_t begin, const Tensor& live) {
    const Tensor diag = ex_.alloc(DType::f32, {in_});
    cuda::diagonal(ex_, a_.r, diag);
    cuda::prune_quads(ex_, {diag.as<float>() + begin, DType::f32, {live.cols()}, {}}, live);
  }

  void launch(const ColumnTile& tile, size_t index, int64_t strip) {
    walk_.u = inverse_.as<float>() + static_cast<int64_t>(index) * kTile * kTile;
    walk_.x = tile.begin == 0 ? nullptr : strip_.as<float>() + (tile.begin - strip);
    walk_.begin = tile.begin;
    walk_.size = static_cast<int>(tile.size());
    const int64_t blocks = std::min((out_ + kWarps - 1) / kWarps, static_cast<int64_t>(s_.sms()) * kBlocksPerSm);
    const auto start = [&](auto* kernel) {
      FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
      kernel<<<static_cast<unsigned>(blocks), kWarps * 32, sizeof(Shared), s_.stream>>>(walk_);
    };
    const bool by_loop = walk_.choose && walk_.search.rule == ScaleRule::loop_grid;
    const auto on_integers = [&](auto prunes) {
      constexpr bool kPrunes = decltype(prunes)::value;
      if (by_loop)
        start(walk_kernel<kByLoop, false, kPrunes>);
      else
        dispatch_candidates(walk_.candidates, [&](auto k) { start(walk_kernel<decltype(k)::value, false, kPrunes>); });
    };
    if (q_.grid == Grid::f8_e4m3)
      start(walk_kernel<1, true, false>);
    else if (a_.two_of_four)
      on_integers(std::true_type{});
    else
      on_integers(std::false_type{});
    FEWBIT_CUDA_LAUNCHED();
  }

  Exec& ex_;
  CudaState& s_;
  const ErrorFeedbackArgs& a_;
  const MutableCodedView& q_;
  int64_t out_, in_;
  bool fixed_;  // the grids are given
  std::vector<ColumnTile> tiles_;
  SplitMatrix delta_terms_, r_terms_;  // of W - Q, and of R in a strip's columns
  Tensor delta_{}, strip_{}, inverse_{};
  Walk walk_{};
};

}  // namespace

void error_feedback(Exec& ex, const ErrorFeedbackArgs& a, const MutableCodedView& q, TensorView loss) {
  ex.zero(loss);
  if (a.w.rows() > 0) Loop(ex, a, q, loss).run();
}

}  // namespace fewbit::cuda
