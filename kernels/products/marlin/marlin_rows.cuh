#pragma once
// y = x W^T on 4-bit Marlin words as they lie, for up to 16 rows of x and groups of 128 or more: the weights are read
// once, at the speed of memory. As in marlin_stream.cuh a block keeps a slice of k and walks over runs of outputs
// ("chunks"), and each warp pulls its words through a ring of its own. Here x of the slice lies in shared memory for
// all warps, and a team of warps has a chunk: the fewer they are, the longer a warp adds in registers before sums meet.
// These meet in shared memory, then those of the blocks in device memory (marlin_rows_end.cuh), always in the order of
// k. What a launch does once, before its first product and after its last, is kept short: those instructions come from
// beyond the first cache, at several cycles each. Of these, whatever does not lead to x waits until x is on its way.
// Blocks that wait for each other must be resident together: plan_rows() asks for no more than one a multiprocessor.
#include "kernels/products/marlin/marlin_rows_end.cuh"
#include "kernels/products/marlin/subnormal_product.cuh"

namespace fewbit::cuda {

// kWords: of a lane and k-tile. 4: a chunk is a run of 64 outputs; 2: half of one (RowsQuad), so that a warp has half
// of the sums to hand over; it reads x twice as often for that, and the memory in pieces of 256 bytes.
template <int kColumns_, int kWords_, bool kZeros_>
struct RowsVariant {
  static constexpr int kColumns = kColumns_, kTokens = 8 * kColumns, kWords = kWords_;
  static constexpr bool kZeros = kZeros_;
  static constexpr int kOutputs = 16 * kWords;   // of a chunk
  static constexpr int kTileLanes = 8 * kWords;  // that copy a k-tile of it, and read it
  // A stage of a warp's ring: words, and, in a run's first, scales and zero points.
  static constexpr int kTiles = 16 / kWords, kTileBytes = 128 * kWords, kHalves = kWarpTiles / kTiles;
  static constexpr int kScalesAt = kTiles * kTileBytes, kScaleBytes = 2 * kOutputs;
  static constexpr int kZerosAt = kScalesAt + kScaleBytes, kZeroBytes = kZeros ? kOutputs / 2 : 0;
  static constexpr int kStageBytes = (kZerosAt + kZeroBytes + 127) / 128 * 128;  // whole lines
  static constexpr int kStages = kColumns == 1 ? 4 : 3, kMaxWarps = 16;
  static constexpr int kMostRuns = 20;                        // of a slice
  static constexpr int kAtOnce = kWords == 2 ? kColumns : 1;  // columns whose sums a team adds at once
  static constexpr int kLeft = kWords * kAtOnce * 32;         // quads: a warp's sums of them
  static constexpr int kRingBytes = kStages * kStageBytes;    // of a warp
  static constexpr int kWarpBytes = kRingBytes + 16 * kLeft;
  static int x_stride(int runs) { return runs * kWarpTiles * marlin::kTileK * 2 + 16; }  // + 16 for the banks
  static size_t shared_bytes(int warps, int runs, int rows, int letters) {
    return static_cast<size_t>(warps) * kWarpBytes + static_cast<size_t>(rows) * x_stride(runs) + runs * kTokens * 4 +
           size_t{16} * letters * 32 * warps;
  }
};

// Where a warp reads next: walks over (chunk, run of its k, stage of it).
template <class V>
struct RowsFeeder {
  static constexpr int kStep = 32 / V::kTileLanes;  // k-tiles that a warp copies at once
  const RowsJob& job;
  int first_run, runs;  // of the warp
  int chunk, step;      // the next, and from one to the next
  int lane;
  int run = 0;
  const uint32_t* at = nullptr;  // this lane's words of the stage that is next
  const char* group = nullptr;   // this lane's scales or zero points of `run`
  int row_words = 0;             // from k-tile to k-tile
  int left = 0;                  // k-tiles from this lane's first of the next stage on
  bool copies_group;             // this lane

  __device__ __forceinline__ RowsFeeder(const RowsJob& j, int first_run, int runs, int first_chunk, int step, int lane)
      : job(j),
        first_run(first_run),
        runs(runs),
        chunk(first_chunk),
        step(step),
        lane(lane),
        copies_group(lane < V::kScaleBytes / 16 ? grouped() : lane < (V::kScaleBytes + V::kZeroBytes) / 16) {
    seat();
  }
  __device__ __forceinline__ void seat() {
    if (chunk >= job.chunks) return;
    int i = 0;
    while (chunk >= job.weights[i].end_chunk) ++i;
    // By index: through a pointer to it the compiler would read the job from memory, behind all words that are on their
    // way.
    const int out = job.weights[i].w.out, local = chunk - first_chunk_of(job, i),
              tile = first_run * kWarpTiles + lane / V::kTileLanes;
    const int64_t first_group = grouped() ? first_run : 0;
    row_words = out * 2;
    left = static_cast<unsigned>(job.in) / marlin::kTileK - tile;
    at = job.weights[i].w.b + static_cast<int64_t>(tile) * row_words +
         (local * (V::kTileBytes / 4) + 4 * (lane % V::kTileLanes));
    group =
        copies_scales()
            ? reinterpret_cast<const char*>(job.weights[i].w.s + first_group * out + local * V::kOutputs) + 16 * lane
            : reinterpret_cast<const char*>(job.weights[i].w.z + first_group * (out / 8) + local * (V::kOutputs / 8)) +
                  (16 * lane - V::kScaleBytes);
  }
  __device__ __forceinline__ bool grouped() const { return job.weights[0].w.grouped(); }  // all are alike
  __device__ __forceinline__ bool copies_scales() const { return !V::kZeros || lane < V::kScaleBytes / 16; }
  // The next stage, a run's kHalf-th, to this lane's place of a slot.
  template <int kHalf>
  __device__ __forceinline__ void fetch(uint32_t to) {
    if (chunk < job.chunks) {
      if (left >= V::kTiles) {
#pragma unroll
        for (int i = 0; i < V::kTiles; i += kStep) cp_async16(to + i * V::kTileBytes, at + i * row_words);
      } else {
#pragma unroll
        for (int i = 0; i < V::kTiles; i += kStep)  // beyond: zeros, they meet zeros of x
          cp_async16(to + i * V::kTileBytes, i < left ? at + i * row_words : job.weights[0].w.b, i < left);
      }
      at += V::kTiles * row_words;
      left -= V::kTiles;
      if (kHalf == 0) {
        if (copies_group) cp_async16(to + V::kScalesAt, group);
        if (grouped()) group += copies_scales() ? row_words : row_words / 4;
      }
      if (kHalf == V::kHalves - 1 && ++run == runs) {
        run = 0;
        chunk += step;
        seat();
      }
    }
    cp_async_commit();
  }
};

// The block's place in the grid (slices x parts), x of its slice and its sums in shared memory.
template <class V>
struct RowsBlock {
  static constexpr int kTokens = V::kTokens, kColumns = V::kColumns;
  const RowsJob& job;
  int lane, warp, warps, slice, part;
  int first_run, runs;               // of the slice
  int members, team, teams, member;  // warps of a team; this warp's
  uint8_t* x;                        // [rows, x_stride], raised (subnormal_product.cuh)
  // [runs, kTokens]: the sum of x as products with codes come, times -8 unless kZeros
  float* starts;
  float4* left;  // [warps, kLeft]

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

  // Waits for the predecessor, which may write x, and brings x of the slice to shared memory. `meanwhile` is called
  // once, when what is read is on its way.
  template <class Meanwhile>
  __device__ __forceinline__ void take_x(const Meanwhile& meanwhile) const {
    // As few at once as the slice needs: where they are not needed, their instructions would still have to come.
    if (kColumns == 2 && runs > 16)
      copy_x<3>(meanwhile);
    else
      copy_x<2>(meanwhile);
    __syncthreads();
    add_x();
    __syncthreads();
  }
  // A warp has a row, or with others a part of one; where there are fewer warps than rows, two of them. Of these it
  // takes eight runs at a time, kTogether of them at once.
  template <int kTogether, class Meanwhile>
  __device__ __forceinline__ void copy_x(const Meanwhile& meanwhile) const {
    // pieces of eight values: of a run; of a lane, of a warp
    constexpr int kRun = kWarpTiles * 2, kPieces = 4, kSpan = 32 * kPieces;
    const int in = static_cast<unsigned>(job.in) / 8, pieces = runs * kRun, given = min(pieces, in - first_run * kRun);
    const bool few = warps < kTokens;
    // from one to the next of kTogether
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
          store_shared(to + i * (rows_on * job.x_stride + 16 * pieces_on) + 512 * k, raised(v[i][k], lane % 2 == 0),
                       32 * k < pieces - before);
      });
      const int step = few ? kSpan : kTogether * pieces_on;
      first += step;
      from += step;
      to += 16 * step;
    } while (first < pieces);
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
          for (int i = 0; i < 2; ++i)
            starts[run * kTokens + 8 * c + 2 * lane + i] = (V::kZeros ? 1.f : -8.f) * sum[c][i];
    }
  }
  // The row that this lane gives to ldmatrix.
  __device__ __forceinline__ const uint8_t* lane_x() const {
    return x + subnormal_x_offset<kColumns>(lane, job.rows, job.x_stride);
  }

  __device__ __forceinline__ void await_team() const {
    if (members == 1)
      __syncwarp();
    else
      meet_threads(1 + team, 32 * members);
  }
  // Adds the team's sums of a chunk and leaves them for the other slices, or stores them. `again`: not the team's
  // first.
  __device__ __forceinline__ void add_team(const float (&sum)[V::kWords][kColumns][4], int chunk, bool again) const {
    using Quad = RowsQuad<V>;
    constexpr int kRows = V::kWords * V::kAtOnce;  // of quads
    const bool alone = job.slices == 1;
    float4* partial = rows_partial<V>(job, chunk, slice);
    float4* own = left + warp * V::kLeft + lane;
    const float4* all = left + (warp - member) * V::kLeft + lane;
#pragma unroll
    for (int first = 0; first < kColumns; first += V::kAtOnce) {
      const auto quad = [&](int row) -> Quad { return {row / V::kAtOnce, first + row % V::kAtOnce, lane}; };
      const auto value = [&](int row) -> float4 {
        const float(&of)[4] = sum[row / V::kAtOnce][first + row % V::kAtOnce];
        return {of[0] * kLower, of[1] * kLower, of[2] * kLower, of[3] * kLower};
      };
      if (members == 1 && !alone) {
#pragma unroll
        for (int row = 0; row < kRows; ++row)
          if (quad(row).exists(job.rows)) store_partial(partial + quad(row).place(), value(row));
        continue;
      }
      if (again || first > 0) await_team();  // all have read what was there
#pragma unroll
      for (int row = 0; row < kRows; ++row) own[32 * row] = value(row);
      await_team();
#pragma unroll 1
      for (int row = member; row < kRows; row += members) {
        float4 total = all[32 * row];
#pragma unroll 4
        for (int w = 1; w < members; ++w) add_quad(total, all[w * V::kLeft + 32 * row]);
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

// The sums of a warp's k of one chunk.
template <class V>
struct RowsSums {
  static constexpr int kColumns = V::kColumns, kWords = V::kWords;
  float sum[kWords][kColumns][4] = {};
  float part[kWords][kColumns][4];  // of the group at hand
  uint32_t scales[kWords];          // its scales, of the words' outputs

  // `starts`: of the run, this lane's first column. `own_scales`: this lane's; `own_zeros`: the word that this lane's
  // are in.
  __device__ __forceinline__ void start(uint32_t starts, uint32_t own_scales, uint32_t own_zeros, bool grouped,
                                        int lane) {
    load_shared_words(scales, own_scales);
#pragma unroll
    for (int j = 0; j < kWords; ++j)
      if (!grouped) scales[j] = 0x3c003c00u;  // one: applied where outputs are stored
    uint32_t zeros = 0;
    if constexpr (V::kZeros) zeros = load_shared(own_zeros) >> (lane / V::kTileLanes * 4 * kWords);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint2 pair = load_shared2(starts + 32 * c);
      const float2 start = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
#pragma unroll
      for (int n = 0; n < 2 * kWords; ++n) {
        const float times = V::kZeros ? -small_integer(zeros >> (4 * marlin::fragment_zero_field(n, 4))) : 1.f;
        part[n / 2][c][n % 2 * 2] = times * start.x;
        part[n / 2][c][n % 2 * 2 + 1] = times * start.y;
      }
    }
  }
  // The products of a stage; `x`: this lane's row of its first k-tile.
  __device__ __forceinline__ void add_stage(const uint32_t (&words)[V::kTiles][kWords], uint32_t x) {
    uint32_t b[4];
#pragma unroll
    for (int i = 0; i < V::kTiles; ++i) {
      if (kColumns == 2 || i % 2 == 0) ldmatrix(b, x + i * 32);
      add_subnormal_words(part, words[i], i, b);
    }
  }
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(&scales[j]));
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][c][i] = fmaf(i < 2 ? scale.x : scale.y, part[j][c][i], sum[j][c][i]);
    }
  }
};

template <class V>
__global__ void __launch_bounds__(32 * V::kMaxWarps, 1) marlin_rows_kernel(const __grid_constant__ RowsJob job) {
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
    of = of + V::kStageBytes == V::kRingBytes ? 0 : of + V::kStageBytes;
    return at;
  };
  feeder.template fetch<0>(ring_at + next(fill));
  const bool grouped = feeder.grouped();
  const RowsLetters<V> letters{
      job, reinterpret_cast<typename RowsLetters<V>::Place*>(block.starts + block.runs * V::kTokens) + threadIdx.x};
  // This lane's row of x, its sums of x; of a slot, its words of the first k-tile, its scales, the word that its zero
  // points are in.
  uint32_t x, starts, own_words, own_scales, own_zeros = 0;
  block.take_x([&] {
    // What is read of x waits behind the words that were asked for before it: the rest of them comes now.
    feeder.template fetch<1 % V::kHalves>(ring_at + next(fill));
    if constexpr (V::kStages == 4) feeder.template fetch<0>(ring_at + next(fill));
    if (job.letters > 0) letters.seat(block.part, block.slice);
    const int own = block.lane % V::kTileLanes, upper = block.lane / V::kTileLanes * (4 * V::kWords);
    x = kept_address(block.lane_x() + first_run * (kWarpTiles * 32));
    starts = kept_address(block.starts + first_run * V::kTokens + block.lane % 4 * 2);
    own_words = kept_address(ring + 16 * own + upper);
    own_scales = kept_address(ring + V::kScalesAt + 16 * (own / 4) + upper);
    if constexpr (V::kZeros) own_zeros = kept_address(ring + V::kZerosAt + 4 * (own / 4));
  });

  for (int chunk = first_chunk; chunk < job.chunks; chunk += step) {
    RowsSums<V> sums;
    for (int run = 0; run < runs; ++run) {
#pragma unroll
      for (int half = 0; half < V::kHalves; ++half) {
        cp_async_wait<V::kStages - 2>();
        __syncwarp();  // all lanes' copies of this stage are there, and all have read the stage before
        const uint32_t stage = next(slot);
        uint32_t words[V::kTiles][V::kWords];
#pragma unroll
        for (int i = 0; i < V::kTiles; ++i) load_shared_words(words[i], own_words + stage + i * V::kTileBytes);
        if (half == 0)
          sums.start(starts + 4 * run * V::kTokens, own_scales + stage, own_zeros + stage, grouped, block.lane);
        if ((half + V::kStages - 1) % V::kHalves == 0)
          feeder.template fetch<0>(ring_at + next(fill));
        else
          feeder.template fetch<V::kHalves - 1>(ring_at + next(fill));
        sums.add_stage(words, x + (run * kWarpTiles + half * V::kTiles) * 32);
      }
      sums.end();
    }
    block.add_team(sums.sum, chunk, chunk != first_chunk);
  }
  cp_async_wait<0>();
  if (job.slices == 1) return;
  if (job.letters == 1) {
    if (job.slices <= kFewSlices)
      letters.template add<1, kFewSlices>();
    else
      letters.template add<1, 8>();
  } else if (job.letters == kMostLetters) {
    letters.template add<kMostLetters, kFewSlices>();
  } else {
    RowsEnd<V> end(job, block.part);
    end_part(
        job, 0, block.part, block.slice, [&](int own, int sharers) { end.share(own, sharers); },
        [&](int, int) { end.add(); });
  }
}

}  // namespace fewbit::cuda
