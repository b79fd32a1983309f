#pragma once
// y = x W^T on 4-bit Marlin words as they lie, for up to 16 rows of x and groups of 128 or more: the weights are read once, at the
// speed of memory. As in marlin_stream.cuh a block keeps a slice of k and walks over runs of 64 outputs ("chunks"), and
// each warp pulls its words through a ring of its own. Here x of the slice lies in shared memory for all warps, and a team of
// warps has a chunk: the fewer they are, the longer a warp adds in registers before sums meet. These meet in shared memory, then
// those of the blocks in device memory (marlin_rows_end.cuh), always in the order of k.
// What a launch does once, before its first product and after its last, is kept short: those instructions come from beyond the
// first cache, at several cycles each.
// Blocks that wait for each other must be resident together: plan_rows() asks for no more than one a multiprocessor.
#include "kernels/marlin_rows_end.cuh"
#include "kernels/subnormal_product.cuh"

namespace fewbit::cuda {

template <int kColumns_, bool kZeros_>
struct RowsVariant {
  static constexpr int kColumns = kColumns_, kTokens = 8 * kColumns;
  static constexpr bool kZeros = kZeros_;
  using Stage = StreamStage<4, false, kZeros>;
  static constexpr int kStages = kColumns == 1 ? 4 : 3, kMaxWarps = 16;
  static constexpr int kMostRuns = 16;                          // of a slice
  static constexpr int kLeft = marlin::kSubTiles * 32;          // quads: a warp's sums of eight tokens
  static constexpr int kRingBytes = kStages * Stage::kBytes;    // of a warp
  static constexpr int kWarpBytes = kRingBytes + 16 * kLeft;
  static int x_stride(int runs) { return runs * kWarpTiles * marlin::kTileK * 2 + 16; }  // + 16 for the banks
  static size_t shared_bytes(int warps, int runs, int rows) {
    return static_cast<size_t>(warps) * kWarpBytes + static_cast<size_t>(rows) * x_stride(runs) + runs * kTokens * 4 +
           size_t{16} * kMostLetters * 32 * warps;
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
  int left = 0;                     // k-tiles from the next stage on
  bool copies_scales;               // this lane

  __device__ __forceinline__ RowsFeeder(const RowsJob& j, int first_run, int runs, int first_chunk, int step, int lane)
      : job(j),
        first_run(first_run),
        runs(runs),
        chunk(first_chunk),
        step(step),
        lane(lane),
        copies_scales(grouped() && lane < Stage::kScaleBytes / 16) {
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
    left = job.in / marlin::kTileK - first_run * kWarpTiles;
    at = job.weights[i].w.b + static_cast<int64_t>(first_run) * kWarpTiles * row_words + local * marlin::tile_words(4) + 4 * lane;
    scales = job.weights[i].w.s + group * out + local * marlin::kTileN + 8 * lane;
    if (V::kZeros) zeros = job.weights[i].w.z + group * (out / 8) + local * (Stage::kZeroBytes / 4) + 4 * lane;
  }
  __device__ __forceinline__ bool grouped() const { return job.weights[0].w.grouped(); }  // all are alike
  // The next stage, which is this half of a run, to this lane's place of a slot.
  template <int kHalf>
  __device__ __forceinline__ void fetch(uint32_t to) {
    if (chunk < job.chunks) {
      if (left >= kStageTiles) {
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i) cp_async16(to + i * Stage::kTileBytes, at + i * row_words);
      } else {
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i)  // beyond: zeros, they meet zeros of x
          cp_async16(to + i * Stage::kTileBytes, i < left ? at + i * row_words : job.weights[0].w.b, i < left);
      }
      at += kStageTiles * row_words;
      left -= kStageTiles;
      if (kHalf == 0) fetch_group(to + kStageTiles * Stage::kTileBytes);
      if (kHalf == 1 && ++run == runs) {
        run = 0;
        chunk += step;
        seat();
      }
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void fetch_group(uint32_t to) {
    if (copies_scales) cp_async16(to, scales);
    if (V::kZeros && lane < Stage::kZeroBytes / 16) cp_async16(to + Stage::kScaleBytes, zeros);
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
  uint8_t* x;                          // [rows, x_stride], raised (subnormal_product.cuh)
  float* starts;                       // [runs, kTokens]: the sum of x as products with codes come, times -8 unless kZeros
  float4* left;                        // [warps, kLeft]

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

  // x of the slice to shared memory, half a row of the longest slice at a time, two of them together. `meanwhile` is called once,
  // when what is read is on its way.
  template <class Meanwhile>
  __device__ __forceinline__ void take_x(const Meanwhile& meanwhile) const {
    constexpr int kValues = 8, kPieces = V::kMostRuns * kWarpTiles * marlin::kTileK / kValues / 32 / 2;  // of a lane and half
    const int pieces = runs * kWarpTiles * 2, given = min(pieces, job.in / kValues - first_run * kWarpTiles * 2);
    for (int first = warp; first < 2 * kTokens; first += 2 * warps) {
      uint4 v[2][kPieces];
      const auto each = [&](const auto& body) {  // body(its registers, row, first piece of the lane)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int half = first + i * warps, row = half % kTokens, from = half / kTokens * (32 * kPieces);
          if (half < 2 * kTokens && row < job.rows && from < pieces) body(v[i], row, from + lane);
        }
      };
      each([&](uint4 (&of)[kPieces], int row, int piece) {
        const auto* from = reinterpret_cast<const uint4*>(job.x + static_cast<int64_t>(row) * job.in) + first_run * kWarpTiles * 2 + piece;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) of[i] = piece + 32 * i < given ? __ldcg(from + 32 * i) : uint4{0, 0, 0, 0};
      });
      if (first == warp) meanwhile();
      each([&](uint4 (&of)[kPieces], int row, int piece) {
        auto* to = reinterpret_cast<uint4*>(x + row * job.x_stride) + piece;
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
          if (piece + 32 * i < pieces) to[32 * i] = raised(of[i], lane % 2 == 0);
      });
    }
    __syncthreads();
    add_x();
    __syncthreads();
  }
  // The sums of x over every run, as the product with codes that are all 1.
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
  // Adds the team's sums of a chunk, eight tokens at a time, and leaves them for the other slices, or stores them.
  __device__ __forceinline__ void add_team(const float (&sum)[marlin::kSubTiles][kColumns][4], int chunk) const {
    const bool alone = job.slices == 1;
    float4* partial = partial_of<kTokens>(job, 0, chunk, slice);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float4 v[marlin::kSubTiles];
#pragma unroll
      for (int j = 0; j < marlin::kSubTiles; ++j)
        v[j] = {sum[j][c][0] * kLower, sum[j][c][1] * kLower, sum[j][c][2] * kLower, sum[j][c][3] * kLower};
      RowsQuad<V> quad{0, c, lane};
      const bool exists = quad.exists(job.rows);
      if (members == 1 && !alone) {
#pragma unroll
        for (int j = 0; j < marlin::kSubTiles; ++j) {
          quad.j = j;
          if (exists) store_partial(partial + quad.place(), v[j]);
        }
        continue;
      }
      float4* own = left + warp * V::kLeft + lane;
      const float4* all = left + (warp - member) * V::kLeft + lane;
      await_team();  // all have read what was there
#pragma unroll
      for (int j = 0; j < marlin::kSubTiles; ++j) own[32 * j] = v[j];
      await_team();
#pragma unroll 1
      for (quad.j = member; quad.j < marlin::kSubTiles; quad.j += members) {
        float4 total = all[32 * quad.j];
#pragma unroll 4
        for (int w = 1; w < members; ++w) add_quad(total, all[w * V::kLeft + 32 * quad.j]);
        if (alone) {
          total = transposed(total, lane);
          if (quad.token() < job.rows) quad.output(job, chunk).store(job, total);
        } else if (exists) {
          store_partial(partial + quad.place(), total);
        }
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

  // `starts`: of the run, this lane's first column. `own_scales`: this lane's. `zero_words`: of the group.
  __device__ __forceinline__ void start(uint32_t starts, uint32_t own_scales, const uint32_t* zero_words, bool grouped, int lane) {
    *reinterpret_cast<uint4*>(scales) = load_shared4(own_scales);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (!grouped) scales[i] = __half(1.f);  // applied where outputs are stored
    LaneZeros<4> zeros;
    if constexpr (V::kZeros) zeros.set_words(zero_words, lane);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint2 pair = load_shared2(starts + 32 * c);
      const float2 start = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float times = V::kZeros ? 128.f - __uint_as_float(zeros.v[n] << 16) : 1.f;
        part[n / 2][c][n % 2 * 2] = times * start.x;
        part[n / 2][c][n % 2 * 2 + 1] = times * start.y;
      }
    }
  }
  // The products of a stage; `x`: this lane's row of its first k-tile.
  __device__ __forceinline__ void add_stage(const uint4 (&words)[kStageTiles], uint32_t x) {
    uint32_t b[4];
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      if (kColumns == 2 || i % 2 == 0) ldmatrix(b, x + i * 32);
      add_subnormal_tile(part, words[i], i, b);
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
  allow_successor();
  RowsBlock<V> block(job);
  uint8_t* ring = shared + block.warp * V::kRingBytes;
  block.left = reinterpret_cast<float4*>(shared + block.warps * V::kRingBytes);
  block.x = shared + block.warps * V::kWarpBytes;
  block.starts = reinterpret_cast<float*>(block.x + job.rows * job.x_stride);
  const int first_run = block.runs * block.member >> job.team_shift;
  const int runs = kept((block.runs * (block.member + 1) >> job.team_shift) - first_run);
  const int first_chunk = block.part + block.team * job.parts, step = block.teams * job.parts;
  RowsFeeder<V> feeder(job, block.first_run + first_run, runs, first_chunk, step, block.lane);
  const uint32_t ring_at = kept_address(ring + 16 * block.lane);  // this lane's words
  uint32_t fill = 0, slot = 0;                                    // the slots that are filled and read next, in bytes
  const auto next = [](uint32_t& of) {
    const uint32_t at = of;
    of = of + Stage::kBytes == V::kRingBytes ? 0 : of + Stage::kBytes;
    return at;
  };
  feeder.template fetch<0>(ring_at + next(fill));
  const RowsLetters<V> letters{job, reinterpret_cast<typename RowsLetters<V>::Place*>(block.starts + block.runs * V::kTokens) + threadIdx.x};
  if (job.letters > 0) letters.seat(block.part, block.slice);
  await_predecessor();
  // What is read of x waits behind the words that were asked for before it: the rest of them comes after.
  block.take_x([&] {
    feeder.template fetch<1>(ring_at + next(fill));
    if constexpr (V::kStages == 4) feeder.template fetch<0>(ring_at + next(fill));
  });

  constexpr int kGroupAt = kStageTiles * Stage::kTileBytes;  // of a slot: scales, zero points
  const bool grouped = feeder.grouped();
  const uint32_t x = kept_address(block.lane_x() + first_run * (kWarpTiles * 32));
  const uint32_t starts = kept_address(block.starts + first_run * V::kTokens + block.lane % 4 * 2);
  const uint32_t scales = kept_address(ring + kGroupAt + 2 * marlin::fragment_scale(block.lane, 0, true));
  for (int chunk = first_chunk; chunk < job.chunks; chunk += step) {
    RowsSums<V> sums;
    for (int run = 0; run < runs; ++run) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        cp_async_wait<V::kStages - 2>();
        __syncwarp();  // all lanes' copies of this stage are there, and all have read the stage before
        const uint32_t stage = next(slot);
        uint4 words[kStageTiles];
#pragma unroll
        for (int i = 0; i < kStageTiles; ++i) words[i] = load_shared4(ring_at + stage + i * Stage::kTileBytes);
        if (half == 0)
          sums.start(starts + 4 * run * V::kTokens, scales + stage,
                     reinterpret_cast<const uint32_t*>(ring + stage + kGroupAt + Stage::kScaleBytes), grouped, block.lane);
        if ((half + V::kStages - 1) % 2 == 0)
          feeder.template fetch<0>(ring_at + next(fill));
        else
          feeder.template fetch<1>(ring_at + next(fill));
        sums.add_stage(words, x + (run * kWarpTiles + half * kStageTiles) * 32);
      }
      sums.end();
    }
    block.add_team(sums.sum, chunk);
  }
  cp_async_wait<0>();
  if (job.slices == 1) return;
  if (job.letters == 1) {
    letters.template add<1, 8>();
  } else if (job.letters == kMostLetters) {
    letters.template add<kMostLetters, kSlicesOfTwo>();
  } else {
    RowsEnd<V> end(job, block.part);
    end_part(job, 0, block.part, block.slice, [&](int own, int sharers) { end.share(own, sharers); },
             [&](int, int) { end.add(); });
  }
}

}  // namespace fewbit::cuda
