#pragma once
// The end of the kernel of marlin_rows.cuh: partial sums of the splits of k become outputs. There are two ways:
//   FlaggedMerge   few quads a thread: it polls for the sums, which are their own flags (flagged_partials.cuh)
//   SplitMerge     more quads: the blocks first count their arrival (merge_splits() in marlin_split_k.cuh)
#include "kernels/device/barrier.cuh"
#include "kernels/device/flagged_partials.cuh"
#include "kernels/products/marlin/marlin_split_k.cuh"

namespace fewbit::cuda::marlin_rows {

using namespace marlin_split_k;

struct Job : marlin_split_k::Job {
  int team_shift;                     // log2 of the warps of a team, which have a chunk together
  int least_runs, longer_splits;      // runs of 128 values of k of a split; the first longer_splits have one more
  int least_chunks, longer_n_blocks;  // chunks of a block; the first longer_n_blocks of n_blocks have one more
  int x_stride;                       // bytes from row to row of x in shared memory
  int flagged_quads;                  // quads of a thread at most where FlaggedMerge adds them; 0: SplitMerge does
};

// FlaggedMerge takes up to so many quads a thread, but more than one only where there are so few splits that one
// request brings them all.
constexpr int kMostFlaggedQuads = 2, kFewSplits = 4;

// The four values of each of four lanes, transposed among them: lanes whose numbers differ only in bits 2 and 3.
__device__ __forceinline__ float4 transposed(float4 v, int lane) {
  const bool odd = lane & 4, upper = lane & 8;
  const float xy = __shfl_xor_sync(0xffffffffu, odd ? v.x : v.y, 4),
              zw = __shfl_xor_sync(0xffffffffu, odd ? v.z : v.w, 4);
  (odd ? v.x : v.y) = xy;
  (odd ? v.z : v.w) = zw;
  const float xz = __shfl_xor_sync(0xffffffffu, upper ? v.x : v.z, 8),
              yw = __shfl_xor_sync(0xffffffffu, upper ? v.y : v.w, 8);
  (upper ? v.x : v.z) = xz;
  (upper ? v.y : v.w) = yw;
  return v;
}

// Four sums of a chunk as a lane of the tensor cores has them: two outputs of two tokens. `j` is the lane's word of a
// k-tile that they come from, `column` the column of eight rows of x. Which outputs those are depends on kWords, the
// words of a lane:
//   4   a chunk is 64 outputs; word j has outputs lane / 4 and 8 more of sub-tile j
//   2   a chunk is 32 outputs, whose words lie side by side: the first four of eight neighbouring outputs each in the
//       even chunks, the last four in the odd ones; the upper half of the warp has sub-tiles 2 and 3
template <class V>
struct QuadOf {
  static constexpr int kOfChunk = V::kWords * V::kColumns * 32;
  int j, column, lane;

  static __device__ __forceinline__ QuadOf at(int place) {
    return {place / (32 * V::kColumns), place / 32 % V::kColumns, place % 32};
  }
  __device__ __forceinline__ int place() const { return (j * V::kColumns + column) * 32 + lane; }
  __device__ __forceinline__ bool exists(int rows) const { return 8 * column + lane % 4 * 2 < rows; }
  // The token whose outputs this lane stores once the four values of every lane are transposed().
  __device__ __forceinline__ int token() const { return 8 * column + lane % 4 * 2 + lane / 4 % 2; }
  __device__ __forceinline__ OutputQuad output(const Job& job, int chunk) const {
    constexpr int kOfRun = marlin::kTileN / V::kOutputs;
    int weight = 0;
    while (chunk >= job.weights[weight].end_chunk) ++weight;
    const unsigned local = chunk - first_chunk_of(job, weight);
    const int sub_tile = lane / V::kTileLanes * V::kWords + j;
    const int quad = 4 * sub_tile + (lane / 4 & 2) + static_cast<int>(kOfRun == 1 ? lane / 16 : local % kOfRun);
    const int col = static_cast<int>(local / kOfRun) * marlin::kTileN + 4 * quad;
    return {weight, col, static_cast<int64_t>(token()) * job.weights[weight].w.out + col};
  }
};

// The partial sums that a split leaves of a chunk, as quads by QuadOf::place().
template <class V>
__device__ __forceinline__ float4* partial_sums(const Job& job, int chunk, int split) {
  return reinterpret_cast<float4*>(job.partials) +
         static_cast<int64_t>(chunk * job.splits + split) * QuadOf<V>::kOfChunk;
}

// How many quads the chunks of `n_block` have.
template <class V>
__device__ __forceinline__ int quads_of(const Job& job, int n_block) {
  return (job.least_chunks + (n_block < job.longer_n_blocks)) * QuadOf<V>::kOfChunk;
}

// Adds the partial sums behind an arrival counter, kTogether quads of a thread at a time, kAtOnce splits of each. Their
// places are worked out while the block waits for the others.
template <class V>
struct SplitMerge {
  static constexpr int kTogether = 2, kAtOnce = 8;
  using Quad = QuadOf<V>;
  const Job& job;
  int n_block, quads;
  int stride = 0, first = 0;  // this thread's next kTogether quads: the first, and from one to the next
  const float4* from[kTogether];
  OutputQuad to[kTogether];
  bool wanted[kTogether];

  __device__ __forceinline__ SplitMerge(const Job& j, int n_block)
      : job(j), n_block(n_block), quads(quads_of<V>(j, n_block)) {}
  // The outputs are shared out among `mergers` blocks, of which this one is the `rank`-th.
  __device__ __forceinline__ void prepare(int rank, int mergers) {
    stride = mergers * blockDim.x;
    first = rank * blockDim.x + threadIdx.x;
    seek();
  }
  __device__ __forceinline__ void seek() {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int e = min(first + i * stride, quads - 1), chunk = n_block + e / Quad::kOfChunk * job.n_blocks;
      const Quad quad = Quad::at(e % Quad::kOfChunk);
      // Nobody stored sums of tokens that do not exist: those lanes read what the first of four lanes has.
      from[i] = partial_sums<V>(job, chunk, 0) + quad.place() - (quad.exists(job.rows) ? 0 : quad.lane % 4);
      to[i] = quad.output(job, chunk);
      wanted[i] = first + i * stride < quads && quad.token() < job.rows;
    }
  }
  // The loop over splits also stands in marlin_stream_reduce.cuh, which says why.
  __device__ __forceinline__ void add() {
    while (first < quads) {
      float4 v[kTogether] = {};
      for (int s0 = 0; s0 < job.splits; s0 += kAtOnce) {
        float4 some[kAtOnce][kTogether];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
          for (int i = 0; i < kTogether; ++i)
            if (s0 + s < job.splits) some[s][i] = __ldcg(from[i] + (s0 + s) * Quad::kOfChunk);
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
          for (int i = 0; i < kTogether; ++i)
            if (s0 + s < job.splits) add_quad(v[i], some[s][i]);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        v[i] = transposed(v[i], threadIdx.x % 32);
        if (wanted[i]) to[i].store(job, v[i]);
      }
      first += kTogether * stride;
      if (first < quads) seek();
    }
  }
};

// Adds flagged partial sums as they arrive, without a counter. A thread has no more than kMostFlaggedQuads quads. Where
// these lie and where they go is worked out while the block waits for x and kept in shared memory: at the end of a
// launch every instruction counts.
template <class V>
struct FlaggedMerge {
  using Quad = QuadOf<V>;
  struct alignas(16) Place {
    uint32_t from, to;  // quads from the beginning of the partial sums, values from that of y
    int col;            // the first output, counted within the weight
    uint32_t marks;     // bit 0: there are partial sums; bit 1: the sum is stored; above: the weight

    __device__ __forceinline__ bool exists() const { return marks & 1; }
    __device__ __forceinline__ bool wanted() const { return marks & 2; }
    __device__ __forceinline__ OutputQuad output() const { return {static_cast<int>(marks >> 2), col, to}; }
  };
  const Job& job;
  Place* places;  // [kMostFlaggedQuads, threads], from this thread's first on

  __device__ __forceinline__ void prepare(int n_block, int rank) const {
    const unsigned quads = quads_of<V>(job, n_block);
#pragma unroll 1
    for (int i = 0; i < job.flagged_quads; ++i) {
      const unsigned e = (rank + i * job.splits) * blockDim.x + threadIdx.x;
      const int chunk = n_block + static_cast<int>(e / Quad::kOfChunk) * job.n_blocks;
      const Quad quad = Quad::at(e % Quad::kOfChunk);
      Place place{};
      if (e < quads) {
        const OutputQuad to = quad.output(job, chunk);
        place = {static_cast<uint32_t>(chunk * job.splits * Quad::kOfChunk + quad.place()),
                 static_cast<uint32_t>(to.at), to.col,
                 static_cast<uint32_t>(to.weight << 2 | (quad.token() < job.rows) << 1 | quad.exists(job.rows))};
      }
      places[i * blockDim.x] = place;
    }
  }
  // Requests kAtOnce splits of kTogether quads at a time. Afterwards the words are unwritten again, for the next
  // launch.
  template <int kTogether, int kAtOnce>
  __device__ __forceinline__ void add() const {
    Place place[kTogether];
    float4* from[kTogether];
    int splits[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      place[i] = places[i * blockDim.x];
      from[i] = kept(reinterpret_cast<float4*>(job.partials) + place[i].from);
      splits[i] = place[i].exists() ? job.splits : 0;
    }
    if (V::kColumns > 1) {
      // One lane polls for the last split: if all lanes polled for all splits, that would take the L2's bandwidth from
      // the blocks that still compute.
      if (threadIdx.x % 32 == 0 && place[0].exists())
        while (__float_as_uint(load_flagged_word(from[0] + (job.splits - 1) * Quad::kOfChunk)) == kUnwritten)
          __nanosleep(20);
      __syncwarp();
    }
    float4 v[kTogether];
    while (!read<kTogether, kAtOnce>(v, splits, from)) {
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      v[i] = transposed(v[i], threadIdx.x % 32);
      if (place[i].wanted()) place[i].output().store(job, v[i]);
    }
    const uint32_t empty[4] = {kept(kUnwritten), kept(kUnwritten), kept(kUnwritten), kept(kUnwritten)};
    for (int s0 = 0; s0 < job.splits; s0 += kAtOnce)
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          clear_flagged(from[i] + s0 * Quad::kOfChunk + s * Quad::kOfChunk, empty, s < splits[i] - s0);
  }

 private:
  // The sums over all splits in the order of k; false where some had not arrived yet. Unlike SplitMerge::add() it may
  // read a word before it is written, so it keeps what it read until it has been checked.
  template <int kTogether, int kAtOnce>
  __device__ __forceinline__ bool read(float4 (&v)[kTogether], const int (&splits)[kTogether],
                                       float4* const (&from)[kTogether]) const {
    bool incomplete = false;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) v[i] = {};
    for (int s0 = 0; s0 < job.splits; s0 += kAtOnce) {
      float4 some[kAtOnce][kTogether];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          some[s][i] = load_flagged(from[i] + s0 * Quad::kOfChunk + s * Quad::kOfChunk, s < splits[i] - s0);
      bool may = false;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) add_quad(v[i], some[s][i]);
        may = may || may_have_unwritten(v[i]);
      }
      if (!may) continue;
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i) incomplete = incomplete || has_unwritten(some[s][i]);
    }
    return !incomplete;
  }
};

}  // namespace fewbit::cuda::marlin_rows
