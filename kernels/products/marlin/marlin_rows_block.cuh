#pragma once
// A block of marlin_rows.cuh: x of its split in shared memory, the products of a warp, and the sums of a team of warps.
#include "kernels/products/marlin/marlin_rows_loader.cuh"
#include "kernels/products/marlin/subnormal_product.cuh"

namespace fewbit::cuda::marlin_rows {

// The block's place in the grid (splits x n_blocks), x of its split and the warps' sums in shared memory.
template <class V>
struct Block {
  static constexpr int kTokens = V::kTokens, kColumns = V::kColumns;
  const Job& job;
  int lane, warp, warps, split, n_block;
  int first_run, runs;               // of the split
  int members, team, teams, member;  // warps of a team, this warp's team, teams, this warp's place in its team
  uint8_t* x;                        // [rows, x_stride], prescaled (subnormal_product.cuh)
  float* starts;                     // [runs, kTokens]: what the sums of a run start with, see add_x()
  float4* left;                      // [warps, kWarpQuads]: sums that the warps hand over

  __device__ __forceinline__ explicit Block(const Job& j)
      : job(j),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32),
        split(blockIdx.x),
        n_block(blockIdx.y),
        first_run(split * j.least_runs + min(split, j.longer_splits)),
        runs(j.least_runs + (split < j.longer_splits)),
        members(1 << j.team_shift),
        team(warp >> j.team_shift),
        teams(warps >> j.team_shift),
        member(warp & (members - 1)) {}

  // Waits for the preceding kernel, which may write x, and brings x of the split into shared memory. `meanwhile` is
  // called once, while the first reads are under way.
  template <class Meanwhile>
  __device__ __forceinline__ void take_x(const Meanwhile& meanwhile) const {
    // No more at once than the split needs: instructions that do nothing must still be fetched.
    if (kColumns == 2 && runs > 16)
      copy_x<3>(meanwhile);
    else
      copy_x<2>(meanwhile);
    __syncthreads();
    add_x();
    __syncthreads();
  }
  // A warp copies a row, or a part of one where there are more warps than rows, or two rows where there are fewer. It
  // takes eight runs of a row at a time, and kTogether such spans at once.
  template <int kTogether, class Meanwhile>
  __device__ __forceinline__ void copy_x(const Meanwhile& meanwhile) const {
    // Pieces of eight values: of a run, of a lane at a time, of a warp at a time.
    constexpr int kRun = kWarpTiles * 2, kPieces = 4, kSpan = 32 * kPieces;
    const int in = static_cast<unsigned>(job.in) / 8, pieces = runs * kRun, given = min(pieces, in - first_run * kRun);
    const bool few = warps < kTokens;
    // The distance from one of the kTogether spans to the next.
    const int rows_on = few ? warps : 0, pieces_on = kept(few ? 0 : warps / kTokens * kSpan);
    const int row = warp % kTokens, start = warp / kTokens * kSpan;
    const auto* from = kept(reinterpret_cast<const uint4*>(job.x) + static_cast<int64_t>(row) * in +
                            (first_run * kRun + start + lane));
    uint32_t to = kept_address(x + row * job.x_stride + 16 * (start + lane));
    int first = start;
    await_predecessor();
    do {
      uint4 v[kTogether][kPieces];
      const auto each = [&](const auto& body) {  // body(i, pieces before this lane's first)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (row + i * rows_on < job.rows && first + i * pieces_on < pieces) body(i, first + i * pieces_on + lane);
      };
      each([&](int i, int before) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k)
          v[i][k] = load_past_l1(from + i * (static_cast<int64_t>(rows_on) * in + pieces_on) + 32 * k,
                                 32 * k < given - before);
      });
      if (first == start) meanwhile();
      each([&](int i, int before) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k)
          store_shared(to + i * (rows_on * job.x_stride + 16 * pieces_on) + 512 * k, prescaled(v[i][k], lane % 2 == 0),
                       32 * k < pieces - before);
      });
      const int step = few ? kSpan : kTogether * pieces_on;
      first += step;
      from += step;
      to += 16 * step;
    } while (first < pieces);
  }
  // What the sums of each run start with: the sum of x, made by a product with codes that are all 1 so that it is
  // scaled like the products, times minus the zero point: -8 here; where zero points differ, ChunkSums::start()
  // multiplies by them.
  __device__ __forceinline__ void add_x() const {
    for (int run = warp; run < runs; run += warps) {
      float sum[kColumns][4] = {};
#pragma unroll
      for (int i = 0; i < kWarpTiles; i += 2 / kColumns) {
        uint32_t b[4];
        ldmatrix(b, lane_x() + (run * kWarpTiles + i) * 32);
        add_subnormal_ones(sum, b);
      }
      if (lane < 4)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            starts[run * kTokens + 8 * c + 2 * lane + i] = (V::kZeros ? 1.f : -8.f) * sum[c][i];
    }
  }
  // The row whose address this lane gives to ldmatrix.
  __device__ __forceinline__ const uint8_t* lane_x() const {
    return x + subnormal_x_offset<kColumns>(lane, job.rows, job.x_stride);
  }

  // The warps of a team wait for each other.
  __device__ __forceinline__ void await_team() const {
    if (members == 1)
      __syncwarp();
    else
      named_barrier_sync(1 + team, 32 * members);
  }
  // Adds the sums of the team's warps of a chunk, then stores them: as outputs where k is not split, else as partial
  // sums. `again`: this is not the team's first chunk.
  __device__ __forceinline__ void add_team(const float (&sum)[V::kWords][kColumns][4], int chunk, bool again) const {
    using Quad = QuadOf<V>;
    constexpr int kRows = V::kWords * V::kAtOnce;  // of quads
    const bool alone = job.splits == 1;
    float4* partial = partial_sums<V>(job, chunk, split);
    float4* own = left + warp * V::kWarpQuads + lane;
    const float4* all = left + (warp - member) * V::kWarpQuads + lane;
#pragma unroll
    for (int first = 0; first < kColumns; first += V::kAtOnce) {
      const auto quad = [&](int row) -> Quad { return {row / V::kAtOnce, first + row % V::kAtOnce, lane}; };
      const auto value = [&](int row) -> float4 {
        const float(&of)[4] = sum[row / V::kAtOnce][first + row % V::kAtOnce];
        return {of[0] * kUnscale, of[1] * kUnscale, of[2] * kUnscale, of[3] * kUnscale};
      };
      if (members == 1 && !alone) {
#pragma unroll
        for (int row = 0; row < kRows; ++row)
          if (quad(row).exists(job.rows)) store_partial(partial + quad(row).place(), value(row));
        continue;
      }
      if (again || first > 0) await_team();  // all have read the sums before
#pragma unroll
      for (int row = 0; row < kRows; ++row) own[32 * row] = value(row);
      await_team();
#pragma unroll 1
      for (int row = member; row < kRows; row += members) {
        float4 total = all[32 * row];
#pragma unroll 4
        for (int w = 1; w < members; ++w) add_quad(total, all[w * V::kWarpQuads + 32 * row]);
        const Quad at = quad(row);
        if (alone) {
          total = transposed(total, lane);
          if (at.token() < job.rows) at.output(job, chunk).store(job, total);
        } else if (at.exists(job.rows)) {
          store_partial(partial + at.place(), total);
        }
      }
    }
  }
};

// The sums of one chunk over the runs of a warp.
template <class V>
struct ChunkSums {
  static constexpr int kColumns = V::kColumns, kWords = V::kWords;
  float sum[kWords][kColumns][4] = {};
  float of_run[kWords][kColumns][4];  // of the current run, before its scales
  uint32_t scales[kWords];            // of the current run: two f16 for the outputs of each word

  // Begins a run. Addresses in shared memory: `starts` of the run for this lane's first column, `own_scales` for this
  // lane, `own_zeros` the word that holds the lane's zero points.
  __device__ __forceinline__ void start(uint32_t starts, uint32_t own_scales, uint32_t own_zeros, bool grouped,
                                        int lane) {
    load_shared_words(scales, own_scales);
#pragma unroll
    for (int j = 0; j < kWords; ++j)
      if (!grouped) scales[j] = 0x3c003c00u;  // 1 as f16, twice: one group's scale is applied by OutputQuad::store()
    uint32_t zeros = 0;
    if constexpr (V::kZeros) zeros = load_shared(own_zeros) >> (lane / V::kTileLanes * 4 * kWords);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint2 pair = load_shared2(starts + 32 * c);
      const float2 start = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
#pragma unroll
      for (int n = 0; n < 2 * kWords; ++n) {
        const float times = V::kZeros ? -small_integer(zeros >> (4 * marlin::fragment_zero_field(n, 4))) : 1.f;
        of_run[n / 2][c][n % 2 * 2] = times * start.x;
        of_run[n / 2][c][n % 2 * 2 + 1] = times * start.y;
      }
    }
  }
  // += the products of a stage. `x`: this lane's row of x in its first k-tile.
  __device__ __forceinline__ void add_stage(const uint32_t (&words)[V::kTiles][kWords], uint32_t x) {
    uint32_t b[4];
#pragma unroll
    for (int i = 0; i < V::kTiles; ++i) {
      if (kColumns == 2 || i % 2 == 0) ldmatrix(b, x + i * 32);
      add_subnormal_words(of_run, words[i], i, b);
    }
  }
  // Ends a run: sum += its sums times its scales.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&scales[j]));
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][c][i] = fmaf(i < 2 ? scale.x : scale.y, of_run[j][c][i], sum[j][c][i]);
    }
  }
};

}  // namespace fewbit::cuda::marlin_rows
