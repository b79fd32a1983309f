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

// The sum of e^2 of each of two grids over the columns [from, to) of the tile, tried on a copy of the row's
// live weights; the same on every lane. Two at a time, so that one's chain of dependent steps hides the
// other's.
__device__ __forceinline__ void try_grids(const float (&live)[4], const float (&diag)[4], const Shared& sh, int from,
                                          int to, int max_code, const GridChoice (&grid)[2], float (&loss)[2]) {
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
__device__ __forceinline__ GridChoice search_by_loop(const float (&live)[4], const float (&diag)[4], const Shared& sh,
                                                     int from, int to, const ScaleSearch& search, int candidates) {
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
        const float level = kF8 ? f8_round(live[i] / scale[i]) : grid_level(live[i], scale[i], zero[i], max_code);
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

}  // namespace fewbit::cuda::feedback
