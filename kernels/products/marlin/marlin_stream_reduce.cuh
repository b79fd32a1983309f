#pragma once
// The end of the kernel of marlin_stream.cuh: partial sums of the splits of k become outputs.
#include "kernels/products/marlin/marlin_split_k.cuh"

namespace fewbit::cuda::marlin_stream {

using namespace marlin_split_k;

// The partial sums that a split leaves of a chunk: [kTokens, 64] as quads.
template <int kTokens>
__device__ __forceinline__ float4* partial_sums(const Job& job, int pass, int chunk, int split) {
  return reinterpret_cast<float4*>(job.partials) +
         static_cast<int64_t>((pass * job.chunks + chunk) * job.splits + split) * (kTokens * kChunkQuads);
}

// Adds the splits of the chunks of `n_block` for `tokens` rows from row0 on, and stores them. The outputs are shared
// out among `mergers` blocks, of which this is the `rank`-th; a thread takes two quads at a time, kAtOnce splits of
// each.
// The loop over splits stands here and in marlin_rows_reduce.cuh: in a function of its own that takes v, from, the
// number of splits and a stride, most kernels had up to 64 more instructions and some spilled registers.
template <int kTokens, int kAtOnce>
__device__ __forceinline__ void add_splits(const Job& job, int pass, int n_block, int row0, int tokens, int rank,
                                           int mergers) {
  constexpr int kTogether = 2;
  const int of_chunk = tokens * kChunkQuads;
  const int quads = (job.chunks - n_block + job.n_blocks - 1) / job.n_blocks * of_chunk;
  const int stride = mergers * blockDim.x;
  for (int first = rank * blockDim.x + threadIdx.x; first < quads; first += kTogether * stride) {
    int chunk[kTogether], at[kTogether];
    const float4* from[kTogether];
    float4 v[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int e = min(first + i * stride, quads - 1);
      chunk[i] = e / of_chunk;
      at[i] = e - chunk[i] * of_chunk;
      chunk[i] = n_block + chunk[i] * job.n_blocks;
      from[i] = partial_sums<kTokens>(job, pass, chunk[i], 0) + at[i];
    }
    for (int s0 = 0; s0 < job.splits; s0 += kAtOnce) {
      float4 some[kAtOnce][kTogether];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (s0 + s < job.splits) some[s][i] = __ldcg(from[i] + (s0 + s) * (kTokens * kChunkQuads));
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (s0 + s < job.splits) add_quad(v[i], some[s][i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (first + i * stride < quads)
        OutputQuad(job, chunk[i], at[i] % kChunkQuads, row0 + at[i] / kChunkQuads).store(job, v[i]);
  }
}

}  // namespace fewbit::cuda::marlin_stream
