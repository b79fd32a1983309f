#pragma once
// The walk over one tile of at most 128 columns (kernels/quantize/error_feedback_cuda.cu). A warp owns a row, four
// neighbouring columns a lane, all in registers; U_BB = R_BB^-1 (64 KiB) is in shared memory, read as one 16-byte
// vector a lane and column. One pass turns the residual of earlier columns into live weights, searches each group's
// scale when it reaches its first column, rounds, and feeds errors forward. With ScaleRule::loop_grid the search is a
// trial walk per candidate.
#include "kernels/device/reduce.cuh"
#include "kernels/grids/f8_grid.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/error_feedback.h"
#include "kernels/quantize/grid_search.cuh"

namespace fewbit::cuda::feedback {

constexpr int kTile = static_cast<int>(kTileCols);
constexpr int kWarps = 16;
constexpr int kBlocksPerSm = 2;
static_assert(kTile == 128, "four columns a lane");

struct Walk {
  CodedArrays<true> q;  // codes are written; scales and zeros where `choose`
  const float* w;       // [out, in]
  const float* r;       // [in, in]
  const float* x;       // [out, x_ld] what earlier columns left for this tile, (W - Q) R; null in the first tile
  const float* u;       // [128, 128] U_BB of this tile
  const float* h;       // [in] importance of the columns
  float* delta;         // [out, in] W - Q
  double* loss;         // [out]
  int64_t x_ld;
  int64_t begin;   // first column of the tile
  int size;        // columns of the tile
  int candidates;  // of the search
  bool choose;     // groups lie inside tiles and their scales are searched here
  ScaleSearch search;
};

// All of the block's shared memory: U_BB, the importance of the tile's columns, a row of live weights per warp.
struct Shared {
  float u[kTile][kTile];
  float h[kTile];
  float live[kWarps][kTile];
};

template <int K>
__device__ __forceinline__ GridChoice search_live(const float* live, const float* h, int n, const ScaleSearch& search,
                                                  int candidates) {
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

// The sum of e^2 under each of two grids over the columns [from, to) of the tile, tried on a copy of the row's live
// weights; the same on every lane. Two at a time: each is a chain of dependent steps, and one hides the other's
// latency. stay: the lane's columns that are rounded, by bits; the others get the level 0.
__device__ __forceinline__ void try_grids(const float (&live)[4], const float (&diag)[4], int stay, const Shared& sh,
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
        const float level = stay >> i & 1 ? round_even(clamp_to(w[c][i] * inverse[c], lo[c], hi[c])) : 0.f;
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

// ScaleRule::loop_grid for the columns [from, to) of the tile; stay as in try_grids.
__device__ __forceinline__ GridChoice search_by_loop(const float (&live)[4], const float (&diag)[4], int stay,
                                                     const Shared& sh, int from, int to, const ScaleSearch& search,
                                                     int candidates) {
  const int first = 4 * (threadIdx.x % 32);
  GroupRange range;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i >= from && first + i < to && stay >> i & 1) {
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
    try_grids(live, diag, stay, sh, from, to, (1 << search.bits) - 1, grid, loss);
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

// A lane's four columns of a row, while it goes through a tile.
struct LaneColumns {
  float w[4];     // the weight, in the end W - Q
  float live[4];  // the weight with what the columns before it left
  float scale[4];
  int zero[4], code[4];
};

// The weights, and the grids where they are known before the walk.
__device__ __forceinline__ LaneColumns load_columns(const Walk& t, int64_t row, int first) {
  LaneColumns l;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool inside = first + i < t.size;
    const int column = static_cast<int>(t.begin) + first + i;
    l.w[i] = l.live[i] = inside ? t.w[t.q.index(row, column)] : 0.f;
    l.scale[i] = 1;
    l.zero[i] = t.q.mid;
    l.code[i] = 0;
    if (inside && !t.choose) {
      const int g = t.q.group_at(column);
      l.scale[i] = t.q.scale(row, g);
      l.zero[i] = t.q.zero(row, g);
    }
  }
  return l;
}

// live += X_B U_BB: the errors of the tiles before this one.
__device__ __forceinline__ void add_residual(const Walk& t, const Shared& sh, int64_t row, int first,
                                             float (&live)[4]) {
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

// The grid of group g, whose n columns begin at column j of the tile, from their live weights: into every lane's scales
// and zeros and into memory. kPrunes: over the pairs that are likely to stay.
template <int K, bool kPrunes>
__device__ __forceinline__ void choose_group(const Walk& t, Shared& sh, int64_t row, int g, int j, int n,
                                             const float (&diag)[4], LaneColumns& l) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int stay = kPrunes ? larger_pair(l.live, diag) : kWholeQuad;
  GridChoice best;
  if constexpr (K == kByLoop) {
    best = search_by_loop(l.live, diag, stay, sh, j, j + n, t.search, t.candidates);
  } else {
    const auto likely = [&](int i) { return stay >> i & 1 ? l.live[i] : 0.f; };
    *reinterpret_cast<float4*>(&sh.live[warp][4 * lane]) = make_float4(likely(0), likely(1), likely(2), likely(3));
    __syncwarp();
    best = search_live<K>(&sh.live[warp][j], &sh.h[j], n, t.search, t.candidates);
    __syncwarp();
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    l.scale[k] = best.scale;
    l.zero[k] = best.zero;
  }
  if (lane != 0) return;
  t.q.scales[t.q.grid_index(row, g)] = best.scale;
  if (t.q.zeros) t.q.zeros[t.q.grid_index(row, g)] = static_cast<uint8_t>(best.zero);
}

// Rounds the four columns of lane `owner` one after another and feeds each error forward to all columns after it.
// kPrunes: they are a quad, of which a pair stays.
template <bool kF8, bool kPrunes>
__device__ __forceinline__ void round_four(const Walk& t, const Shared& sh, int owner, const float (&diag)[4],
                                           LaneColumns& l, double& loss) {
  const int lane = threadIdx.x % 32;
  const int stay = kPrunes ? larger_pair(l.live, diag) : kWholeQuad;  // of every lane's own; only the owner's counts
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int j = 4 * owner + i;
    if (j >= t.size) break;
    // Every lane rounds its own i-th column; only the owner's counts.
    float level = kF8 ? f8_round(l.live[i] / l.scale[i]) : grid_level(l.live[i], l.scale[i], l.zero[i], t.q.max_code);
    if (kPrunes && !(stay >> i & 1)) level = 0;
    const float q = level * l.scale[i];
    const float mine = (l.live[i] - q) * diag[i];
    const float e = __shfl_sync(kAllLanes, mine, owner);
    if (lane == owner) {
      l.code[i] = kF8 ? f8_code(level) : static_cast<int>(level) + l.zero[i];
      l.w[i] -= q;
      loss += static_cast<double>(e) * e;
    }
    const float4 u = *reinterpret_cast<const float4*>(&sh.u[j][4 * lane]);
    l.live[0] -= e * u.x;
    l.live[1] -= e * u.y;
    l.live[2] -= e * u.z;
    l.live[3] -= e * u.w;
  }
}

__device__ __forceinline__ void store_columns(const Walk& t, int64_t row, int first, const LaneColumns& l) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i < t.size) {
      const int64_t at = t.q.index(row, static_cast<int>(t.begin) + first + i);
      t.q.codes[at] = static_cast<uint8_t>(l.code[i]);
      t.delta[at] = l.w[i];
    }
}

template <int K, bool kF8, bool kPrunes>  // candidates per lane, or kByLoop; the grid; 2:4 sparsity
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) walk_kernel(const Walk t) {
  extern __shared__ __align__(16) unsigned char raw[];
  Shared& sh = *reinterpret_cast<Shared*>(raw);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = 4 * lane;
  for (int i = threadIdx.x; i < kTile * kTile / 4; i += blockDim.x)
    reinterpret_cast<float4*>(&sh.u[0][0])[i] = reinterpret_cast<const float4*>(t.u)[i];
  for (int i = threadIdx.x; i < t.size; i += blockDim.x) sh.h[i] = t.h[t.begin + i];
  __syncthreads();

  float diag[4];  // R_jj = 1 / U_jj
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t c = t.begin + first + i;
    diag[i] = first + i < t.size ? t.r[c * t.q.in + c] : 0.f;
  }
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < t.q.out;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    LaneColumns columns = load_columns(t, row, first);
    if (t.x) add_residual(t, sh, row, first, columns.live);
    double loss = 0;
    int until_group = 0;  // owners until the next group begins
    int next_group = static_cast<int>(t.begin) / t.q.group;
    for (int owner = 0; 4 * owner < t.size; ++owner) {
      // Groups begin at multiples of four columns (column_tiles), that is, at an owner's first.
      if (t.choose && until_group == 0) {
        const int n = min(t.q.group, t.size - 4 * owner);
        choose_group<K, kPrunes>(t, sh, row, next_group++, 4 * owner, n, diag, columns);
        until_group = (n + 3) / 4;
      }
      --until_group;
      round_four<kF8, kPrunes>(t, sh, owner, diag, columns, loss);
    }
    store_columns(t, row, first, columns);
    loss = warp_sum(loss);
    if (lane == 0) t.loss[row] += loss;
  }
}

}  // namespace fewbit::cuda::feedback
