// The column loop of GPTQ. Rows are independent, columns are not, so the loop runs over tiles of at most 128
// columns:
//   1. cuBLAS brings the residual of earlier columns, X_B = (W - Q)[:, <B] R[<B, B]. Tiles are gathered in
//   strips of
//      some 1024 columns: one wide product per strip covers everything before it, a narrow one the strip's
//      own tiles.
//   2. One kernel walks the tile. A warp owns a row, four neighbouring columns a lane, all in registers; U_BB
//   = R_BB^-1
//      (64 KiB) is in shared memory, read as one 16-byte vector a lane and column. The same pass turns X_B
//      into live weights, searches each group's scale when the walk reaches its first column, rounds, and
//      feeds errors forward. With ScaleRule::loop_grid the search is a trial walk per candidate.
// A group wider than a tile gets its scales before its first tile, from live weights by a triangular solve
// with R_GG.
#include <algorithm>
#include <vector>

#include "kernels/column_tiles.h"
#include "kernels/error_feedback.h"
#include "kernels/exec_cuda.h"
#include "kernels/f8_grid.h"
#include "kernels/gemm.h"
#include "kernels/grid_search.cuh"
#include "kernels/reduce.cuh"
#include "src/core/mat.h"

namespace fewbit::cuda {
namespace {

constexpr int kTile = static_cast<int>(kTileCols);
constexpr int kWarps = 16;
constexpr int kBlocksPerSm = 2;
constexpr int64_t kStripCols = 1024;
static_assert(kTile == 128, "four columns a lane");

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

struct Walk {
  const float* w;           // [out, in]
  const float* r;           // [in, in]
  const float* x;           // [out, x_ld] residual of earlier columns, of this tile; null in the first tile
  const float* u;           // [128, 128] inverse tile
  const float* h;           // [in]
  const int32_t* group_of;  // [in] or null
  float* scales;            // [out, groups]
  uint8_t* zeros;           // [out, groups] or null
  uint8_t* codes;           // [out, in]
  float* delta;             // [out, in] W - Q
  double* loss;             // [out]
  int64_t out, in, x_ld, groups, group, begin;
  int size;        // columns of the tile
  int candidates;  // of the search
  bool choose;     // groups lie inside tiles and their scales are searched here
  ScaleSearch search;
};

// Shared memory, carved at the top: U_BB, the importance of the tile's columns, a row of live weights per
// warp.
struct Shared {
  float u[kTile][kTile];
  float h[kTile];
  float live[kWarps][kTile];
};

template <int K>
__device__ __forceinline__ GridChoice search_live(const float* live, const float* h, int n,
                                                  const ScaleSearch& search, int candidates) {
  const int lane = threadIdx.x % 32;
  GroupRange range;
  for (int i = lane; i < n; i += 32) {
    range.min = fminf(range.min, live[i]);
    range.max = fmaxf(range.max, live[i]);
  }
  LaneSearch<K> s;
  s.start(search, warp_range(range), candidates);
  if (candidates > 1) s.add_run(live, h, n);
  return s.best();
}

// The sum of e^2 of each of two grids over the columns [from, to) of the tile, tried on a copy of the row's
// live weights; the same on every lane. Two at a time, so that one's chain of dependent steps hides the
// other's.
__device__ __forceinline__ void try_grids(const float (&live)[4], const float (&diag)[4], const Shared& sh,
                                          int from, int to, int max_code, const GridChoice (&grid)[2],
                                          float (&loss)[2]) {
  const int lane = threadIdx.x % 32;
  float w[2][4], inverse[2], lo[2], hi[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    inverse[c] = 1.f / grid[c].scale;
    lo[c] = static_cast<float>(-grid[c].zero);
    hi[c] = static_cast<float>(max_code - grid[c].zero);
    loss[c] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) w[c][i] = live[i];
  }
  for (int owner = from / 4; 4 * owner < to; ++owner) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * owner + i;
      if (j >= to) break;
      const float4 u = *reinterpret_cast<const float4*>(&sh.u[j][4 * lane]);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float level = round_even(clamp_to(w[c][i] * inverse[c], lo[c], hi[c]));
        const float e = __shfl_sync(kAllLanes, (w[c][i] - level * grid[c].scale) * diag[i], owner);
        loss[c] = fmaf(e, e, loss[c]);
        w[c][0] -= e * u.x;
        w[c][1] -= e * u.y;
        w[c][2] -= e * u.z;
        w[c][3] -= e * u.w;
      }
    }
  }
}

// ScaleRule::loop_grid for the columns [from, to) of the tile.
__device__ __forceinline__ GridChoice search_by_loop(const float (&live)[4], const float (&diag)[4],
                                                     const Shared& sh, int from, int to,
                                                     const ScaleSearch& search, int candidates) {
  const int first = 4 * (threadIdx.x % 32);
  GroupRange range;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i >= from && first + i < to) {
      range.min = fminf(range.min, live[i]);
      range.max = fmaxf(range.max, live[i]);
    }
  range = warp_range(range);
  GridChoice best;
  float least = INFINITY;
  for (int c = 0; c < candidates; c += 2) {
    const GridChoice grid[2] = {scale_candidate(search, range, c),
                                scale_candidate(search, range, min(c + 1, candidates - 1))};
    float loss[2];
    try_grids(live, diag, sh, from, to, (1 << search.bits) - 1, grid, loss);
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (loss[k] < least || c + k == 0) {
        least = loss[k];
        best = grid[k];
      }
  }
  return best;
}

constexpr int kByLoop = 0;  // in the place of K: the candidates are tried, not judged by the diagonal

template <int K, bool kF8>  // candidates per lane, or kByLoop; the grid
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) walk_kernel(const Walk t) {
  extern __shared__ __align__(16) unsigned char raw[];
  Shared& sh = *reinterpret_cast<Shared*>(raw);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = 4 * lane;
  for (int i = threadIdx.x; i < kTile * kTile / 4; i += blockDim.x)
    reinterpret_cast<float4*>(&sh.u[0][0])[i] = reinterpret_cast<const float4*>(t.u)[i];
  for (int i = threadIdx.x; i < t.size; i += blockDim.x) sh.h[i] = t.h[t.begin + i];
  __syncthreads();

  const int max_code = (1 << t.search.bits) - 1, mid = 1 << (t.search.bits - 1);
  float diag[4];  // R_jj = 1 / U_jj
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t c = t.begin + first + i;
    diag[i] = first + i < t.size ? t.r[c * t.in + c] : 0.f;
  }
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < t.out;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    float w[4], live[4], scale[4];
    int zero[4], code[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool inside = first + i < t.size;
      const int64_t c = t.begin + first + i;
      w[i] = live[i] = inside ? t.w[row * t.in + c] : 0.f;
      scale[i] = 1;
      zero[i] = mid;
      code[i] = 0;
      if (inside && !t.choose) {
        const int64_t g = row * t.groups + (t.group_of ? t.group_of[c] : c / t.group);
        scale[i] = t.scales[g];
        if (t.zeros) zero[i] = t.zeros[g];
      }
    }
    if (t.x) {  // live += X_B U_BB
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = first + i < t.size ? t.x[row * t.x_ld + first + i] : 0.f;
      for (int owner = 0; owner < 32; ++owner) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float xj = __shfl_sync(kAllLanes, x[i], owner);
          const float4 u = *reinterpret_cast<const float4*>(&sh.u[4 * owner + i][first]);
          live[0] += xj * u.x;
          live[1] += xj * u.y;
          live[2] += xj * u.z;
          live[3] += xj * u.w;
        }
      }
    }
    double loss = 0;
    int until_group = 0;  // owners until the next group begins
    int64_t next_group = t.begin / t.group;
    for (int owner = 0; 4 * owner < t.size; ++owner) {
      // Groups begin at multiples of four columns (column_tiles), that is, at an owner's first.
      if (t.choose && until_group == 0) {
        const int j = 4 * owner, n = static_cast<int>(min(t.group, static_cast<int64_t>(t.size - j)));
        GridChoice best;
        if constexpr (K == kByLoop) {
          best = search_by_loop(live, diag, sh, j, j + n, t.search, t.candidates);
        } else {
          *reinterpret_cast<float4*>(&sh.live[warp][first]) = make_float4(live[0], live[1], live[2], live[3]);
          __syncwarp();
          best = search_live<K>(&sh.live[warp][j], &sh.h[j], n, t.search, t.candidates);
          __syncwarp();
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          scale[k] = best.scale;
          zero[k] = best.zero;
        }
        if (lane == 0) {
          t.scales[row * t.groups + next_group] = best.scale;
          if (t.zeros) t.zeros[row * t.groups + next_group] = static_cast<uint8_t>(best.zero);
        }
        ++next_group;
        until_group = (n + 3) / 4;
      }
      --until_group;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 4 * owner + i;
        if (j >= t.size) break;
        // Every lane rounds its own i-th column; only the owner's counts.
        const float level =
            kF8 ? f8_round(live[i] / scale[i]) : grid_level(live[i], scale[i], zero[i], max_code);
        const float q = level * scale[i];
        const float mine = (live[i] - q) * diag[i];
        const float e = __shfl_sync(kAllLanes, mine, owner);
        if (lane == owner) {
          code[i] = kF8 ? f8_code(level) : static_cast<int>(level) + zero[i];
          w[i] -= q;
          loss += static_cast<double>(e) * e;
        }
        const float4 u = *reinterpret_cast<const float4*>(&sh.u[j][first]);
        live[0] -= e * u.x;
        live[1] -= e * u.y;
        live[2] -= e * u.z;
        live[3] -= e * u.w;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < t.size) {
        t.codes[row * t.in + t.begin + first + i] = static_cast<uint8_t>(code[i]);
        t.delta[row * t.in + t.begin + first + i] = w[i];
      }
    loss = warp_sum(loss);
    if (lane == 0) t.loss[row] += loss;
  }
}

// live[row, i] = w[row, begin + i] + live[row, i]
__global__ void add_weights_kernel(const float* __restrict__ w, float* __restrict__ live, int64_t in,
                                   int64_t begin, int64_t cols, bool first) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x)
    live[row * cols + i] = w[row * in + begin + i] + (first ? 0.f : live[row * cols + i]);
}

class Loop {
 public:
  Loop(Exec& ex, const ErrorFeedbackArgs& a, TensorView codes, TensorView scales, TensorView zeros,
       TensorView loss)
      : ex_(ex),
        s_(ex.cuda_state()),
        a_(a),
        scales_(scales),
        zeros_(zeros),
        out_(a.w.rows()),
        in_(a.w.cols()),
        tiles_(column_tiles(in_, a.group_of.data ? 0 : a.group)) {
    delta_ = ex.alloc(DType::f32, {out_, in_});
    strip_ = ex.alloc_zeros(DType::f32, {out_, kStripCols});  // the first strip has nothing before it
    invert();
    walk_.w = a.w.as<float>();
    walk_.r = a.r.as<float>();
    walk_.h = a.h_diag.as<float>();
    walk_.group_of = a.group_of.data ? a.group_of.as<int32_t>() : nullptr;
    walk_.scales = scales.as<float>();
    walk_.zeros = zeros.data ? zeros.as<uint8_t>() : nullptr;
    walk_.codes = codes.as<uint8_t>();
    walk_.delta = delta_.as<float>();
    walk_.loss = loss.as<double>();
    walk_.out = out_;
    walk_.in = in_;
    walk_.x_ld = kStripCols;
    walk_.groups = scales.cols();
    walk_.group = a.group;
    walk_.candidates = scale_candidates(a.search);
    walk_.choose = !a.group_of.data && a.group <= kTileCols;
    walk_.search = a.search;
  }

  void run() {
    int64_t strip = 0;
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const ColumnTile& tile = tiles_[t];
      if (!a_.group_of.data && a_.group > kTileCols && tile.begin % a_.group == 0)
        choose_spanning(tile.begin);
      if (t == 0 || tile.end - strip > kStripCols) {
        strip = tile.begin;
        int64_t end = tile.end;
        for (size_t k = t; k < tiles_.size() && tiles_[k].end - strip <= kStripCols; ++k) end = tiles_[k].end;
        residual(0, strip, strip, end, strip_.as<float>(), 0);
      }
      residual(strip, tile.begin, tile.begin, tile.end, strip_.as<float>() + (tile.begin - strip), 1);
      launch(tile, t, strip);
    }
  }

 private:
  // x [out, columns [begin, end)] = (W - Q)[:, from:to] R[from:to, begin:end] + beta x; x has kStripCols
  // columns
  void residual(int64_t from, int64_t to, int64_t begin, int64_t end, float* x, float beta) {
    if (from == to) return;
    cuda::matmul(ex_, {.a = mat<float>(delta_).block(0, out_, from, to),
                       .b = mat<float>(a_.r).block(from, to, begin, end),
                       .c = {x, out_, end - begin, kStripCols},
                       .beta = beta});
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

  void choose_spanning(int64_t begin) {
    const int64_t end = std::min(in_, begin + a_.group), n = end - begin;
    const Tensor live = ex_.alloc(DType::f32, {out_, n});
    if (begin > 0) {
      cuda::matmul(ex_, {.a = mat<float>(delta_).block(0, out_, 0, begin),
                         .b = mat<float>(a_.r).block(0, begin, begin, end),
                         .c = mat<float>(live)});
      // Row-major X R_GG^-1 is R_GG^-T X^T column-major, where R_GG's memory reads as a lower triangle.
      const float one = 1;
      FEWBIT_CUBLAS_CALL(cublasStrsm_64(s_.blas, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N,
                                        CUBLAS_DIAG_NON_UNIT, n, out_, &one,
                                        a_.r.as<float>() + begin * in_ + begin, in_, live.as<float>(), n));
    }
    add_weights_kernel<<<static_cast<unsigned>(out_), 256, 0, s_.stream>>>(a_.w.as<float>(), live.as<float>(),
                                                                           in_, begin, n, begin == 0);
    FEWBIT_CUDA_LAUNCHED();
    const int64_t g = begin / a_.group, groups = scales_.cols();
    launch_choose_scales(s_.stream, {.w = live.as<float>(),
                                     .h = a_.h_diag.as<float>() + begin,
                                     .scales = scales_.as<float>() + g,
                                     .zeros = zeros_.data ? zeros_.as<uint8_t>() + g : nullptr,
                                     .rows = out_,
                                     .cols = n,
                                     .w_ld = n,
                                     .grid_ld = groups,
                                     .group = n,
                                     .search = a_.search});
  }

  void launch(const ColumnTile& tile, size_t index, int64_t strip) {
    walk_.u = inverse_.as<float>() + static_cast<int64_t>(index) * kTile * kTile;
    walk_.x = tile.begin == 0 ? nullptr : strip_.as<float>() + (tile.begin - strip);
    walk_.begin = tile.begin;
    walk_.size = static_cast<int>(tile.size());
    const int64_t blocks =
        std::min((out_ + kWarps - 1) / kWarps, static_cast<int64_t>(s_.sms()) * kBlocksPerSm);
    const auto start = [&](auto* kernel) {
      FEWBIT_CUDA_CALL(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
      kernel<<<static_cast<unsigned>(blocks), kWarps * 32, sizeof(Shared), s_.stream>>>(walk_);
    };
    if (a_.grid == Grid::f8_e4m3)
      start(walk_kernel<1, true>);
    else if (walk_.choose && walk_.search.rule == ScaleRule::loop_grid)
      start(walk_kernel<kByLoop, false>);
    else
      dispatch_candidates(walk_.candidates, [&](auto k) { start(walk_kernel<decltype(k)::value, false>); });
    FEWBIT_CUDA_LAUNCHED();
  }

  Exec& ex_;
  CudaState& s_;
  const ErrorFeedbackArgs& a_;
  TensorView scales_, zeros_;
  int64_t out_, in_;
  std::vector<ColumnTile> tiles_;
  Tensor delta_{}, strip_{}, inverse_{};
  Walk walk_{};
};

}  // namespace

void error_feedback(Exec& ex, const ErrorFeedbackArgs& a, TensorView codes, TensorView scales,
                    TensorView zeros, TensorView loss) {
  const int64_t out = a.w.rows(), in = a.w.cols();
  FEWBIT_ASSERT(a.r.rows() == in && a.r.cols() == in && a.h_diag.numel() == in && a.group > 0);
  FEWBIT_ASSERT(codes.shape == a.w.shape && scales.rows() == out && loss.numel() == out);
  FEWBIT_ASSERT(a.search.symmetric == (zeros.data == nullptr));
  FEWBIT_ASSERT(a.grid == Grid::integer || (a.grid == Grid::f8_e4m3 && a.group_of.data && !zeros.data));
  FEWBIT_ASSERT(a.group_of.data || scales.cols() == (in + a.group - 1) / a.group);
  ex.zero(loss);
  if (out > 0) Loop(ex, a, codes, scales, zeros, loss).run();
}

}  // namespace fewbit::cuda
