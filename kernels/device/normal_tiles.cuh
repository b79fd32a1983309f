#pragma once
// The matrices A = C^T H C of the refit (kernels/quantize/refit_cuda.cu) for many rows of levels at once, where all
// groups have 32, 64 or 128 columns: A[g, k] of a row is the dot of Z_g = C_g H_g with C_k, over the columns of group
// k. Z stays in registers: written and read again it costs more than its products.
//
// A block has one tile of H, 128 columns by 128, as three bf16 terms in shared memory, and goes through the rows 128 at
// a time, whose levels in the columns of both sides come ahead in two stages. Levels are exact in bf16. Eight warps:
// two by 64 rows, four by 32 columns. Z is summed in f32, the dot over a warp's 32 columns as well, over the warps in
// f64.
#include <algorithm>

#include "kernels/device/barrier.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda::refit {

constexpr int kTile = 128, kRows = 64, kTerms = 3;
constexpr int kTeams = 2, kTeamThreads = 128, kTileThreads = kTeams * kTeamThreads;
constexpr int kWarpCols = 32;

struct TeamShared {
  __nv_bfloat16 left[2][kRows * kTile], right[2][kRows * kTile];
  float part[kTile / kWarpCols][kRows];
};
struct TileShared {
  __nv_bfloat16 h[kTerms][kTile * kTile];
  TeamShared team[kTeams];
};

struct NormalTiles {
  const float* h;              // [n, n]
  const int32_t* order;        // [n] column at each position
  const __nv_bfloat16* level;  // [rows, n] by position
  double* a;                   // [rows, groups, groups]
  int64_t n, rows;
  int groups;
};

// Where (row, col) of a [.., kTile] lies: sixteen-byte pieces are swapped so that ldmatrix meets every bank once.
__device__ __forceinline__ int swizzled(int row, int col) {
  return row * kTile + (((col / 8) ^ (row % 8)) * 8) + col % 8;
}

__device__ __forceinline__ void load_gram_tile(const NormalTiles& t, int64_t first, int64_t second, TileShared& sh) {
  for (int k = threadIdx.x; k < kTile * kTile / 2; k += kTileThreads) {
    const int r = k / (kTile / 2), c = k % (kTile / 2) * 2;
    const float* row = t.h + t.order[first + r] * t.n;
    float rest[2] = {row[t.order[second + c]], row[t.order[second + c + 1]]};
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      const __nv_bfloat162 b = __floats2bfloat162_rn(rest[0], rest[1]);
      rest[0] -= __low2float(b);
      rest[1] -= __high2float(b);
      *reinterpret_cast<__nv_bfloat162*>(&sh.h[term][swizzled(r, c)]) = b;
    }
  }
}

// Waits for the threads of a team.
__device__ __forceinline__ void team_sync(int team) { named_barrier_sync(team + 1, kTeamThreads); }

// Levels of kRows rows from `row` on; behind the last row that one again, whose answers nobody takes.
__device__ __forceinline__ void load_levels(const NormalTiles& t, int64_t row, int64_t first, int64_t second, int stage,
                                            TeamShared& sh) {
  for (int k = threadIdx.x % kTeamThreads; k < kRows * kTile / 8; k += kTeamThreads) {
    const int r = k / (kTile / 8), c = k % (kTile / 8) * 8;
    const __nv_bfloat16* from = t.level + min(row + r, t.rows - 1) * t.n + c;
    cp_async16(&sh.left[stage][swizzled(r, c)], from + first);
    cp_async16(&sh.right[stage][swizzled(r, c)], from + second);
  }
  cp_async_commit();
}

// z += the levels of group `sub` of the tile times its rows of H, for the warp's columns.
template <int kWidth>
__device__ __forceinline__ void multiply(const __nv_bfloat16 (&h)[kTerms][kTile * kTile], const __nv_bfloat16* left,
                                         int sub, int warp_col, float (&z)[4][4][4]) {
  const int lane = threadIdx.x % 32, in_row = lane % 16, in_col = lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    const int k = sub * kWidth + step * 16;
    uint32_t a[4][4];
#pragma unroll
    for (int m = 0; m < 4; ++m) ldmatrix(a[m], &left[swizzled(m * 16 + in_row, k + in_col)]);
#pragma unroll
    for (int term = kTerms - 1; term >= 0; --term)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        ldmatrix_transposed(b, &h[term][swizzled(k + in_row, warp_col + pair * 16 + in_col)]);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          mma_bf16(z[m][2 * pair], a[m], b[0], b[1]);
          mma_bf16(z[m][2 * pair + 1], a[m], b[2], b[3]);
        }
      }
  }
}

// The dots of z with the levels of the warp's columns, by row.
__device__ __forceinline__ void dot_rows(const float (&z)[4][4][4], const __nv_bfloat16* right, int warp_col,
                                         float (&part)[kTile / kWarpCols][kRows]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + g;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const auto level = *reinterpret_cast<const __nv_bfloat162*>(&right[swizzled(row, warp_col + n * 8 + 2 * t)]);
        sum += z[m][n][2 * half] * __low2float(level);
        sum += z[m][n][2 * half + 1] * __high2float(level);
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) part[warp_col / kWarpCols][row] = sum;
    }
}

// Block x: the tile of H; the teams of blocks y share the rows.
template <int kWidth>
__global__ void __launch_bounds__(kTileThreads, 1) normal_tiles_kernel(const NormalTiles t) {
  extern __shared__ __align__(128) unsigned char raw[];
  TileShared& tile = *reinterpret_cast<TileShared*>(raw);
  constexpr int kGroups = kTile / kWidth, kParts = kWidth / kWarpCols;
  int i = 0, j = blockIdx.x;  // tiles (0, 0), (0, 1) ..., (1, 1), ...
  for (int behind = static_cast<int>(t.n / kTile); j >= behind; --behind, ++i) j -= behind;
  j += i;
  const int64_t first = static_cast<int64_t>(i) * kTile, second = static_cast<int64_t>(j) * kTile;
  const int team = threadIdx.x / kTeamThreads, thread = threadIdx.x % kTeamThreads, warp_col = thread / 32 * kWarpCols;
  TeamShared& sh = tile.team[team];
  const int64_t step = static_cast<int64_t>(gridDim.y) * kTeams * kRows;
  int64_t row = (static_cast<int64_t>(blockIdx.y) * kTeams + team) * kRows;
  if (row < t.rows) load_levels(t, row, first, second, 0, sh);
  load_gram_tile(t, first, second, tile);
  __syncthreads();
  for (int stage = 0; row < t.rows; row += step, stage ^= 1) {
    cp_async_wait<0>();
    team_sync(team);  // also: nobody reads the other stage or the parts any more
    if (row + step < t.rows) load_levels(t, row + step, first, second, stage ^ 1, sh);
    for (int sub = 0; sub < kGroups; ++sub) {
      float z[4][4][4] = {};
      multiply<kWidth>(tile.h, sh.left[stage], sub, warp_col, z);
      dot_rows(z, sh.right[stage], warp_col, sh.part);
      team_sync(team);
      for (int k = thread; k < kRows * kGroups; k += kTeamThreads) {
        const int r = k % kRows, g = i * kGroups + sub, other = j * kGroups + k / kRows;
        if (row + r >= t.rows || other < g) continue;
        double sum = 0;
#pragma unroll
        for (int p = 0; p < kParts; ++p) sum += static_cast<double>(sh.part[k / kRows * kParts + p][r]);
        t.a[((row + r) * t.groups + g) * t.groups + other] = sum;
      }
      if (kGroups > 1) team_sync(team);
    }
  }
}

// Rows g of A from the diagonal on, of all rows of levels; groups of n / groups columns each.
static void normal_tiles(CudaState& s, const NormalTiles& t) {
  constexpr int kLeastRows = 8;  // times kTeams * kRows of a block, so that its tile of H is worth loading
  constexpr int64_t kBlockRows = kTeams * kRows;
  const int64_t tiles = t.n / kTile, count = tiles * (tiles + 1) / 2, rows = (t.rows + kBlockRows - 1) / kBlockRows;
  const int64_t wanted = (4 * s.sms() + count - 1) / count;
  const auto share = static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, rows / kLeastRows)));
  const auto start = [&](auto* kernel) {
    FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(TileShared)));
    kernel<<<dim3(static_cast<unsigned>(count), share), kTileThreads, sizeof(TileShared), s.stream>>>(t);
    FEWBIT_CUDA_LAUNCHED();
  };
  const int64_t width = t.n / t.groups;
  if (width == 32)
    start(normal_tiles_kernel<32>);
  else if (width == 64)
    start(normal_tiles_kernel<64>);
  else
    start(normal_tiles_kernel<128>);
}

}  // namespace fewbit::cuda::refit
