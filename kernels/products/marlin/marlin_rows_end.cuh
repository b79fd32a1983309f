#pragma once
// How the kernel of marlin_rows.cuh ends: sums of the slices of k become outputs.
#include "kernels/device/mailbox.cuh"
#include "kernels/products/marlin/marlin_stream_parts.cuh"

namespace fewbit::cuda {

struct RowsJob : StreamJob {
  int team_shift;                  // log2 of the warps that share the k of a chunk
  int least_runs, longer;          // runs of 128 values of k of a slice; how many slices, the first ones, have one more
  int least_chunks, longer_parts;  // chunks of a part; how many parts, the first ones, have one more
  int x_stride;                    // bytes from row to row of x in shared memory
  int letters;                     // sums go through the mailbox, so many quads for each thread at most; 0: blocks meet
};

// Quads of a thread that are added as they come; two of them only where there are so few slices that one request serves
// all.
constexpr int kMostLetters = 2, kFewSlices = 4;

// The four values of every lane, transposed among the four lanes whose numbers differ in bits 2 and 3 only.
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

// Where the sums of a chunk are, as quads in the order of the registers that they are made in. A lane has kWords words
// of a k-tile. Four are all that it has in a run of 64 outputs: of sub-tile j, outputs lane / 4 and 8 more. Two are of
// a chunk of 32 outputs, whose words lie side by side: the first four of eight neighbours each in the even chunks, the
// last four in the odd ones; the upper half of a warp has sub-tiles 2 and 3. A quad is two outputs of two tokens.
template <class V>
struct RowsQuad {
  static constexpr int kOfChunk = V::kWords * V::kColumns * 32;
  int j, column, lane;

  static __device__ __forceinline__ RowsQuad at(int place) {
    return {place / (32 * V::kColumns), place / 32 % V::kColumns, place % 32};
  }
  __device__ __forceinline__ int place() const { return (j * V::kColumns + column) * 32 + lane; }
  __device__ __forceinline__ bool exists(int rows) const { return 8 * column + lane % 4 * 2 < rows; }
  // What a lane stores once the four values of every lane are transposed(): one token's.
  __device__ __forceinline__ int token() const { return 8 * column + lane % 4 * 2 + lane / 4 % 2; }
  __device__ __forceinline__ OutputQuad output(const RowsJob& job, int chunk) const {
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

// The sums that a slice leaves of a chunk.
template <class V>
__device__ __forceinline__ float4* rows_partial(const RowsJob& job, int chunk, int slice) {
  return reinterpret_cast<float4*>(job.partials) +
         static_cast<int64_t>(chunk * job.slices + slice) * RowsQuad<V>::kOfChunk;
}

// What add_slices() (marlin_stream_parts.cuh) does, of sums in that order; what can be made before the blocks meet is.
template <class V>
struct RowsEnd {
  static constexpr int kTogether = 2, kAtOnce = 8;
  using Quad = RowsQuad<V>;
  const RowsJob& job;
  int part, quads, stride = 0, first = 0;  // of this thread: the first of the next kTogether, `stride` apart
  const float4* from[kTogether];
  OutputQuad to[kTogether];
  bool wanted[kTogether];

  __device__ __forceinline__ RowsEnd(const RowsJob& j, int part)
      : job(j), part(part), quads((j.least_chunks + (part < j.longer_parts)) * Quad::kOfChunk) {}
  // Of `sharers` blocks that share the part's outputs this one is the `own`-th.
  __device__ __forceinline__ void share(int own, int sharers) {
    stride = sharers * blockDim.x;
    first = own * blockDim.x + threadIdx.x;
    seat();
  }
  __device__ __forceinline__ void seat() {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int e = min(first + i * stride, quads - 1), chunk = part + e / Quad::kOfChunk * job.parts;
      const Quad quad = Quad::at(e % Quad::kOfChunk);
      // Of tokens that do not exist nothing was left: those lanes read what the first of four has.
      from[i] = rows_partial<V>(job, chunk, 0) + quad.place() - (quad.exists(job.rows) ? 0 : quad.lane % 4);
      to[i] = quad.output(job, chunk);
      wanted[i] = first + i * stride < quads && quad.token() < job.rows;
    }
  }
  __device__ __forceinline__ void add() {
    while (first < quads) {
      float4 v[kTogether] = {};
      for (int s0 = 0; s0 < job.slices; s0 += kAtOnce) {
        float4 some[kAtOnce][kTogether];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
          for (int i = 0; i < kTogether; ++i)
            if (s0 + s < job.slices) some[s][i] = __ldcg(from[i] + (s0 + s) * Quad::kOfChunk);
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
          for (int i = 0; i < kTogether; ++i)
            if (s0 + s < job.slices) add_quad(v[i], some[s][i]);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        v[i] = transposed(v[i], threadIdx.x % 32);
        if (wanted[i]) to[i].store(job, v[i]);
      }
      first += kTogether * stride;
      if (first < quads) seat();
    }
  }
};

// The same where a thread has no more than kMostLetters quads to add: as they come (kernels/device/mailbox.cuh), with
// no meeting. Where they are and where they go is worked out in the time of waiting for x, and put away in shared
// memory: at the end every instruction counts.
template <class V>
struct RowsLetters {
  using Quad = RowsQuad<V>;
  struct alignas(16) Place {
    uint32_t from, to;  // quads from the partial sums' first, values from y's
    int col;            // among the weight's outputs
    uint32_t marks;     // 1: something was left there; 2: it is stored; above: the weight

    __device__ __forceinline__ bool exists() const { return marks & 1; }
    __device__ __forceinline__ bool wanted() const { return marks & 2; }
    __device__ __forceinline__ OutputQuad output() const { return {static_cast<int>(marks >> 2), col, to}; }
  };
  const RowsJob& job;
  Place* places;  // [kMostLetters, threads], this thread's first

  __device__ __forceinline__ void seat(int part, int own) const {
    const unsigned quads = (job.least_chunks + (part < job.longer_parts)) * Quad::kOfChunk;
#pragma unroll 1
    for (int i = 0; i < job.letters; ++i) {
      const unsigned e = (own + i * job.slices) * blockDim.x + threadIdx.x;
      const int chunk = part + static_cast<int>(e / Quad::kOfChunk) * job.parts;
      const Quad quad = Quad::at(e % Quad::kOfChunk);
      Place place{};
      if (e < quads) {
        const OutputQuad to = quad.output(job, chunk);
        place = {static_cast<uint32_t>(chunk * job.slices * Quad::kOfChunk + quad.place()),
                 static_cast<uint32_t>(to.at), to.col,
                 static_cast<uint32_t>(to.weight << 2 | (quad.token() < job.rows) << 1 | quad.exists(job.rows))};
      }
      places[i * blockDim.x] = place;
    }
  }
  // kAtOnce slices of kTogether quads are asked for at once.
  template <int kTogether, int kAtOnce>
  __device__ __forceinline__ void add() const {
    Place place[kTogether];
    float4* from[kTogether];
    int slices[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      place[i] = places[i * blockDim.x];
      from[i] = kept(reinterpret_cast<float4*>(job.partials) + place[i].from);
      slices[i] = place[i].exists() ? job.slices : 0;
    }
    if (V::kColumns > 1) {
      // One lane looks whether the last slice has come: all of them looking for all would take the L2 from who still
      // computes.
      if (threadIdx.x % 32 == 0 && place[0].exists())
        while (__float_as_uint(peek_word(from[0] + (job.slices - 1) * Quad::kOfChunk)) == kEmptyLetter) __nanosleep(20);
      __syncwarp();
    }
    float4 v[kTogether];
    while (!read<kTogether, kAtOnce>(v, slices, from)) {
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      v[i] = transposed(v[i], threadIdx.x % 32);
      if (place[i].wanted()) place[i].output().store(job, v[i]);
    }
    const uint32_t empty[4] = {kept(kEmptyLetter), kept(kEmptyLetter), kept(kEmptyLetter), kept(kEmptyLetter)};
    for (int s0 = 0; s0 < job.slices; s0 += kAtOnce)
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          empty_letter(from[i] + s0 * Quad::kOfChunk + s * Quad::kOfChunk, empty, s < slices[i] - s0);
  }

 private:
  // The sums over all slices, in the order of k; false where some had not come.
  template <int kTogether, int kAtOnce>
  __device__ __forceinline__ bool read(float4 (&v)[kTogether], const int (&slices)[kTogether],
                                       float4* const (&from)[kTogether]) const {
    bool lacks = false;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) v[i] = {};
    for (int s0 = 0; s0 < job.slices; s0 += kAtOnce) {
      float4 some[kAtOnce][kTogether];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          some[s][i] = peek_letter(from[i] + s0 * Quad::kOfChunk + s * Quad::kOfChunk, s < slices[i] - s0);
      bool may = false;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) add_quad(v[i], some[s][i]);
        may = may || may_lack(v[i]);
      }
      if (!may) continue;
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i) lacks = lacks || has_empty(some[s][i]);
    }
    return !lacks;
  }
};

}  // namespace fewbit::cuda
