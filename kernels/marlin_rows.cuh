#pragma once
// y = x W^T on 4-bit Marlin words as they lie, for up to 16 rows of x and groups of 128 or more: the weights are read once, at the
// speed of memory. As in marlin_stream.cuh a block keeps a slice of k and walks over runs of 64 outputs ("chunks"), and
// each warp pulls its words through a ring of its own. Here x of the slice lies in shared memory for all warps, as f16 under a
// power of two for each row, and a team of warps has a chunk: the fewer they are, the longer a warp adds in registers before
// sums meet. These meet in shared memory, then those of the blocks in scratch memory, always in the order of k.
// Blocks that wait for each other must be resident together: plan_rows() asks for no more than one a multiprocessor.
#include "kernels/marlin_stream_parts.cuh"
#include "kernels/powers.cuh"
#include "kernels/subnormal_product.cuh"

namespace fewbit::cuda {

struct RowsJob : StreamJob {
  int team_shift;          // log2 of the warps that share the k of a chunk
  int least_runs, longer;  // runs of 128 values of k of a slice; how many slices, the first ones, have one more
  int x_stride;            // bytes from row to row of x in shared memory
};

template <int kColumns_, bool kZeros_>
struct RowsVariant {
  static constexpr int kColumns = kColumns_, kTokens = 8 * kColumns;
  static constexpr bool kZeros = kZeros_;
  using Stage = StreamStage<4, false, kZeros>;
  static constexpr int kStages = kColumns == 1 ? 4 : 3, kMaxWarps = 16;
  static constexpr int kMostRuns = 16;                          // of a slice
  static constexpr int kLeft = 8 * kSumStride;                  // floats: a warp's sums of eight tokens
  static constexpr int kRingBytes = kStages * Stage::kBytes;    // of a warp
  static constexpr int kWarpBytes = kRingBytes + 4 * kLeft;
  static int x_stride(int runs) { return runs * kWarpTiles * marlin::kTileK * 2 + 16; }  // + 16 for the banks
  static size_t shared_bytes(int warps, int runs, int rows) {
    return static_cast<size_t>(warps) * kWarpBytes + static_cast<size_t>(rows) * x_stride(runs) + runs * kTokens * 4;
  }
};

// Where a warp reads next: walks over (chunk, run of its k, half of it).
template <class V>
struct RowsFeeder {
  using Stage = typename V::Stage;
  const RowsJob& job;
  int first_run, runs;  // of the warp
  int chunk, step;      // the next, and from one to the next
  int lane;
  int run = 0;
  const uint32_t* at = nullptr;     // this lane's words of the stage that is next
  const __half* scales = nullptr;   // this lane's of `run`
  const uint32_t* zeros = nullptr;  // the same
  int row_words = 0;                // from k-tile to k-tile

  __device__ __forceinline__ RowsFeeder(const RowsJob& j, int first_run, int runs, int first_chunk, int step, int lane)
      : job(j), first_run(first_run), runs(runs), chunk(first_chunk), step(step), lane(lane) {
    seat();
  }
  __device__ __forceinline__ void seat() {
    if (chunk >= job.chunks) return;
    int i = 0;
    while (chunk >= job.weights[i].end_chunk) ++i;
    // By index: through a pointer to it the compiler would read the job from memory, behind all words that are on their way.
    const int out = job.weights[i].w.out, local = chunk - first_chunk_of(job, i);
    const int64_t group = grouped() ? first_run : 0;
    row_words = out * 2;
    at = job.weights[i].w.b + static_cast<int64_t>(first_run) * kWarpTiles * row_words + local * marlin::tile_words(4) + 4 * lane;
    scales = job.weights[i].w.s + group * out + local * marlin::kTileN + 8 * lane;
    if (V::kZeros) zeros = job.weights[i].w.z + group * (out / 8) + local * (Stage::kZeroBytes / 4) + 4 * lane;
  }
  __device__ __forceinline__ bool grouped() const { return job.weights[0].w.grouped(); }  // all are alike
  // The next stage, which is this half of a run.
  template <int kHalf>
  __device__ __forceinline__ void fetch(uint8_t* to) {
    if (chunk < job.chunks) {
      const int left = job.in / marlin::kTileK - (first_run + run) * kWarpTiles - kHalf * kStageTiles;
      if (left >= kStageTiles) {
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i) cp_async16(to + i * Stage::kTileBytes + 16 * lane, at + i * row_words);
      } else {
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i)  // beyond: zeros, they meet zeros of x
          cp_async16(to + i * Stage::kTileBytes + 16 * lane, i < left ? at + i * row_words : job.weights[0].w.b, i < left);
      }
      at += kStageTiles * row_words;
      if (kHalf == 0) fetch_group(to + kStageTiles * Stage::kTileBytes);
      if (kHalf == 1 && ++run == runs) {
        run = 0;
        chunk += step;
        seat();
      }
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void fetch_group(uint8_t* to) {
    if (grouped() && lane < Stage::kScaleBytes / 16) cp_async16(to + 16 * lane, scales);
    if (V::kZeros && lane < Stage::kZeroBytes / 16) cp_async16(to + Stage::kScaleBytes + 16 * lane, zeros);
    if (grouped()) {
      scales += row_words / 2;
      zeros += row_words / 16;
    }
  }
};

// The block's place in the grid (slices x parts), x of its slice and its sums in shared memory.
template <class V>
struct RowsBlock {
  static constexpr int kTokens = V::kTokens, kColumns = V::kColumns;
  const RowsJob& job;
  int lane, warp, warps, slice, part;
  int first_run, runs;                 // of the slice
  int members, team, teams, member;    // warps of a team; this warp's
  uint8_t* x;                          // [rows, x_stride] f16: upper eight values of a k-tile divided by 16
  float* starts;                       // [runs, kTokens]: the sum of x as products with codes come, times -8 unless kZeros
  float* left;                         // [warps, 8, kSumStride]
  float* most;                         // [warps]
  float* down;                         // [kTokens] what to multiply sums by

  __device__ __forceinline__ explicit RowsBlock(const RowsJob& j)
      : job(j),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32),
        slice(blockIdx.x),
        part(blockIdx.y),
        first_run(slice * j.least_runs + min(slice, j.longer)),
        runs(j.least_runs + (slice < j.longer)),
        members(1 << j.team_shift),
        team(warp >> j.team_shift),
        teams(warps >> j.team_shift),
        member(warp & (members - 1)) {}

  // x of the slice, row by row, to shared memory. `meanwhile` is called once, when what is read is on its way.
  template <class Meanwhile>
  __device__ __forceinline__ void take_x(const Meanwhile& meanwhile) const {
    constexpr int kValues = 8, kPieces = V::kMostRuns * kWarpTiles * marlin::kTileK / kValues / 32;  // of a lane, at most
    const int sharers = max(1, warps / kTokens), sharer = warp % sharers;  // warps of a row
    const int pieces = runs * kWarpTiles * 2, given = min(pieces, job.in / kValues - first_run * kWarpTiles * 2);
    for (int token = warp / sharers, first = token; token < kTokens; token += warps / sharers) {
      const bool exists = token < job.rows;
      const auto* from = reinterpret_cast<const uint4*>(job.x + static_cast<int64_t>(exists ? token : 0) * job.in) +
                         first_run * kWarpTiles * 2;
      uint4 v[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = 32 * (sharer + i * sharers) + lane;
        v[i] = exists && piece < given ? __ldcg(from + piece) : uint4{0, 0, 0, 0};
      }
      if (token == first) meanwhile();
      const int up = power_of(v, sharers);
      const float scale = power_of_two(up), own = lane % 2 == 0 ? scale : scale / 16;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int piece = 32 * (sharer + i * sharers) + lane;
        for (uint32_t* pair : {&v[i].x, &v[i].y, &v[i].z, &v[i].w})
          *pair = pack_f16(__uint_as_float(*pair << 16) * own, __uint_as_float(*pair & 0xffff0000u) * own);
        if (exists && piece < pieces) *reinterpret_cast<uint4*>(x + token * job.x_stride + 16 * piece) = v[i];
      }
      if (lane == 0) down[token] = power_of_two(-up) * kSubnormalScale;
    }
    __syncthreads();
    add_x();
    __syncthreads();
  }
  // The exponent of the power of two that brings the row's largest value to 2^14 .. 2^15: what falls below f16 is 2^-28 of it.
  template <int kPieces>
  __device__ __forceinline__ int power_of(const uint4 (&v)[kPieces], int sharers) const {
    __nv_bfloat162 high{};
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      for (const uint32_t pair : {v[i].x, v[i].y, v[i].z, v[i].w})
        high = __hmax2(high, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&pair)));
    const float2 both = __bfloat1622float2(high);
    uint32_t m = __reduce_max_sync(0xffffffffu, __float_as_uint(fmaxf(both.x, both.y)));
    if (sharers > 1) {
      if (lane == 0) most[warp] = __uint_as_float(m);
      __syncthreads();
      for (int i = 0; i < sharers; ++i) m = max(m, __float_as_uint(most[warp / sharers * sharers + i]));
    }
    return power_to_bits(__uint_as_float(m), 15);
  }
  // The sums of x over every run, as the product with codes that are all 1.
  __device__ __forceinline__ void add_x() const {
    for (int run = warp; run < runs; run += warps) {
      float sum[kColumns][4] = {};
#pragma unroll
      for (int i = 0; i < kWarpTiles; i += 2 / kColumns) {
        uint32_t b[4];
        ldmatrix(b, lane_x() + (run * kWarpTiles + i) * 32);
        add_subnormal_ones<mma_f16>(sum, b);
      }
      if (lane < 4)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
#pragma unroll
          for (int i = 0; i < 2; ++i) starts[run * kTokens + 8 * c + 2 * lane + i] = (V::kZeros ? 1.f : -8.f) * sum[c][i];
    }
  }
  // The row that this lane gives to ldmatrix.
  __device__ __forceinline__ const uint8_t* lane_x() const { return x + subnormal_x_offset<kColumns>(lane, job.rows, job.x_stride); }

  __device__ __forceinline__ void await_team() const {
    if (members == 1)
      __syncwarp();
    else
      meet_threads(1 + team, 32 * members);
  }
  // Adds the team's sums of a chunk, eight tokens at a time, and leaves them for the other slices.
  __device__ __forceinline__ void add_team(const float (&sum)[marlin::kSubTiles][kColumns][4], int chunk) const {
    float* own = left + warp * V::kLeft;
    const float* all = left + (warp - member) * V::kLeft;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      await_team();  // all have read what was there
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = lane % 4 * 2 + i;
        const float scale = down[8 * c + token];
#pragma unroll
        for (int j = 0; j < marlin::kSubTiles; ++j) {
          own[token * kSumStride + 16 * j + lane / 4] = sum[j][c][i] * scale;
          own[token * kSumStride + 16 * j + lane / 4 + 8] = sum[j][c][2 + i] * scale;
        }
      }
      await_team();
      for (int e = 32 * member + lane; e < min(8, job.rows - 8 * c) * kQuads; e += 32 * members) {
        const int token = e / kQuads, quad = e % kQuads;
        const float* from = all + token * kSumStride + 4 * quad;
        float4 v = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
        for (int w = 1; w < members; ++w) add_quad(v, *reinterpret_cast<const float4*>(from + w * V::kLeft));
        if (job.slices == 1)
          store_quad(job, chunk, quad, 8 * c + token, v);
        else
          store_partial(partial_of<kTokens>(job, 0, chunk, slice) + 8 * c * kQuads + e, v);
      }
    }
  }
};

// The sums of a warp's k of one chunk.
template <class V>
struct RowsSums {
  static constexpr int kColumns = V::kColumns;
  float sum[marlin::kSubTiles][kColumns][4] = {};
  float part[marlin::kSubTiles][kColumns][4];  // of the group at hand
  alignas(16) __half scales[8];                // its scales, index as in marlin::fragment_scale()

  // `starts`: of the run, this lane's first column. `group`: scales and zero points.
  __device__ __forceinline__ void start(const float* starts, const uint8_t* group, bool grouped, int lane) {
    *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(group + 2 * marlin::fragment_scale(lane, 0, true));
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (!grouped) scales[i] = __half(1.f);  // applied where outputs are stored
    LaneZeros<4> zeros;
    if constexpr (V::kZeros) zeros.set_words(reinterpret_cast<const uint32_t*>(group + marlin::kTileN * 2), lane);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float2 start = *reinterpret_cast<const float2*>(starts + 8 * c);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float times = V::kZeros ? 128.f - __uint_as_float(zeros.v[n] << 16) : 1.f;
        part[n / 2][c][n % 2 * 2] = times * start.x;
        part[n / 2][c][n % 2 * 2 + 1] = times * start.y;
      }
    }
  }
  // The products of a stage; `x`: this lane's row of its first k-tile.
  __device__ __forceinline__ void add_stage(const uint4 (&words)[kStageTiles], const uint8_t* x) {
    uint32_t b[4];
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      if (kColumns == 2 || i % 2 == 0) ldmatrix(b, x + i * 32);
      add_subnormal_tile<mma_f16>(part, words[i], i, b);
    }
  }
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int j = 0; j < marlin::kSubTiles; ++j)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][c][i] = fmaf(__half2float(scales[2 * j + i / 2]), part[j][c][i], sum[j][c][i]);
  }
};

template <class V>
__global__ void __launch_bounds__(32 * V::kMaxWarps, 1) marlin_rows_kernel(const __grid_constant__ RowsJob job) {
  using Stage = typename V::Stage;
  extern __shared__ __align__(128) uint8_t shared[];  // rings off a line cost every copy a pass more
  __shared__ float most[V::kMaxWarps], down[V::kTokens];
  allow_successor();
  RowsBlock<V> block(job);
  uint8_t* ring = shared + block.warp * V::kRingBytes;
  block.left = reinterpret_cast<float*>(shared + block.warps * V::kRingBytes);
  block.x = shared + block.warps * V::kWarpBytes;
  block.starts = reinterpret_cast<float*>(block.x + job.rows * job.x_stride);
  block.most = most;
  block.down = down;
  const int first_run = block.runs * block.member >> job.team_shift;
  const int runs = (block.runs * (block.member + 1) >> job.team_shift) - first_run;
  const int first_chunk = block.part + block.team * job.parts, step = block.teams * job.parts;
  RowsFeeder<V> feeder(job, block.first_run + first_run, runs, first_chunk, step, block.lane);
  int fill = 0, slot = 0;  // the slots that are filled and read next
  const auto next = [&](int& of) {
    uint8_t* at = ring + of * Stage::kBytes;
    of = of + 1 == V::kStages ? 0 : of + 1;
    return at;
  };
  feeder.template fetch<0>(next(fill));
  await_predecessor();
  // What is read of x waits behind the words that were asked for before it: the rest of them comes after.
  block.take_x([&] {
    feeder.template fetch<1>(next(fill));
    if constexpr (V::kStages == 4) feeder.template fetch<0>(next(fill));
  });

  const bool grouped = feeder.grouped();
  const uint8_t* x = block.lane_x() + first_run * (kWarpTiles * 32);
  const float* starts = block.starts + first_run * V::kTokens + block.lane % 4 * 2;
  for (int chunk = first_chunk; chunk < job.chunks; chunk += step) {
    RowsSums<V> sums;
    for (int run = 0; run < runs; ++run) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        cp_async_wait<V::kStages - 2>();
        __syncwarp();  // all lanes' copies of this stage are there, and all have read the stage before
        const uint8_t* stage = next(slot);
        uint4 words[kStageTiles];
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i)
          words[i] = *reinterpret_cast<const uint4*>(stage + i * Stage::kTileBytes + 16 * block.lane);
        if (half == 0) sums.start(starts + run * V::kTokens, stage + kStageTiles * Stage::kTileBytes, grouped, block.lane);
        if ((half + V::kStages - 1) % 2 == 0)
          feeder.template fetch<0>(next(fill));
        else
          feeder.template fetch<1>(next(fill));
        sums.add_stage(words, x + (run * kWarpTiles + half * kStageTiles) * 32);
      }
      sums.end();
    }
    block.add_team(sums.sum, chunk);
  }
  cp_async_wait<0>();
  if (job.slices > 1) end_part<V::kTokens, 8>(job, 0, block.part, block.slice, 0, job.rows);
}

}  // namespace fewbit::cuda
