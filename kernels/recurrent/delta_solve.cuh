#pragma once
// The triangles of a chunk of one head from the products of its keys and queries (delta_pairs.cuh), and the inverse of
// I + A.
#include "kernels/device/launch.cuh"
#include "kernels/recurrent/delta_pairs.cuh"

namespace fewbit::cuda::delta {

// Brings the raw products to the lengths of their rows.
__device__ __forceinline__ void to_lengths(const PairsShared& s, float (&kk)[8][4], float (&qk)[8][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = 16 * warp + lane / 4;
  const float of_k[2] = {s.to_k[row], s.to_k[row + 8]}, of_q[2] = {s.to_q[row], s.to_q[row + 8]};
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    const float2 key = *reinterpret_cast<const float2*>(&s.to_k[8 * tile + lane % 4 * 2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float f = i % 2 == 0 ? key.x : key.y;
      kk[tile][i] *= f * of_k[i / 2], qk[tile][i] *= f * of_q[i / 2];
    }
  }
}

// A into shared memory, P and the factors of rows to `to`.
__device__ __forceinline__ void triangles(PairsShared& s, int slot, const float (&kk)[8][4], const float (&qk)[8][4],
                                          Chunk& to) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 16 * warp + lane / 4;
  auto& own = s.of_head[slot % 2];
  const float* c = s.c[slot];
  const float c_row[2] = {c[first], c[first + 8]}, beta[2] = {s.beta[slot][first], s.beta[slot][first + 8]};
#pragma unroll
  for (int tile = 0; tile < 8; ++tile) {
    if (tile / 2 > warp) continue;
    const int column = 8 * tile + lane % 4 * 2;
    const float2 c_column = *reinterpret_cast<const float2*>(&c[column]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half;
      const float f0 = column <= row ? exp2_fast(c_row[half] - c_column.x) : 0.f;
      const float f1 = column + 1 <= row ? exp2_fast(c_row[half] - c_column.y) : 0.f;
      *reinterpret_cast<uint32_t*>(&to.pairs[row][column]) =
          pack_bf16(qk[tile][2 * half] * f0, qk[tile][2 * half + 1] * f1);
      const float a0 = kk[tile][2 * half] * f0 * beta[half], a1 = kk[tile][2 * half + 1] * f1 * beta[half];
      if (tile / 2 == warp)  // what is on and above the diagonal here is not read
        *reinterpret_cast<float2*>(&own.diagonal[warp][row % 16][column % 16]) = {a0, a1};
      else
        *reinterpret_cast<uint32_t*>(&own.below[row][column]) = pack_f16(a0, a1);
    }
  }
  if (const int t = threadIdx.x; t < kTokens) {
    const float begin = exp2_fast(c[t]);
    to.of_keys[t] = begin * s.to_k[t];
    to.of_queries[t] = begin * s.to_q[t];
    to.to_state[t] = exp2_fast(c[kTokens - 1] - c[t]) * s.to_k[t];
    if (t == kTokens - 1) to.keep[0] = begin;
  }
}

// A block I + A on the diagonal is replaced by its inverse, by one warp; each lane has a column (lanes 16 to 31 repeat
// them).
__device__ __forceinline__ void invert_diagonal(float (&block)[kBlock][kBlock + 4]) {
  const int column = threadIdx.x % 16;
  float x[kBlock];
#pragma unroll
  for (int i = 0; i < kBlock; ++i) {
    float sum[2] = {i == column ? 1.f : 0.f, 0.f};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 a = *reinterpret_cast<const float4*>(&block[i][m]);
      const float four[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (m + j < i) sum[j % 2] = fmaf(-four[j], x[m + j], sum[j % 2]);
    }
    x[i] = sum[0] + sum[1];
  }
  __syncwarp();
  if (threadIdx.x % 32 < kBlock)
#pragma unroll
    for (int i = 0; i < kBlock; ++i) block[i][column] = x[i];
}

__device__ __forceinline__ void as_half_factor(uint32_t (&r)[4], const float (&x)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) r[i] = pack_f16(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// x = -x T^T, T the inverse of a block on the diagonal.
__device__ __forceinline__ void times_inverse(const float (&inverse)[kBlock][kBlock + 4], float (&x)[2][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  uint32_t left[4], b[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = *reinterpret_cast<const float2*>(&inverse[i / 2 * 8 + g][i % 2 * 8 + 2 * t]);
    b[i] = pack_f16(-two.x, -two.y);
  }
  as_half_factor(left, x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[i][j] = 0;
    mma_f16(x[i], left, b[2 * i], b[2 * i + 1]);
  }
}

// Columns 16 warp .. 16 warp + 15 of the inverse, transposed, times their betas, to `to`: the block on the diagonal,
// then those below it, each from the ones before.
__device__ __forceinline__ void invert_columns(const PairsShared& s, int slot, Chunk& to) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto& own = s.of_head[slot % 2];
  const float beta[2] = {s.beta[slot][16 * warp + g], s.beta[slot][16 * warp + g + 8]};
  uint32_t done[kBlocks][4];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block < warp) continue;
    float x[2][4] = {};
    if (block == warp) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i / 4][i % 4] = own.diagonal[block][i / 4 * 8 + 2 * t + i % 2][i % 4 / 2 * 8 + g];
    } else {
#pragma unroll
      for (int m = 0; m < block; ++m) {
        if (m < warp) continue;
        uint32_t b[4];
        ldmatrix(b, &own.below[16 * block + lane / 16 * 8 + lane % 8][16 * m + lane / 8 % 2 * 8]);
        mma_f16(x[0], done[m], b[0], b[1]);
        mma_f16(x[1], done[m], b[2], b[3]);
      }
      times_inverse(own.diagonal[block], x);
    }
    as_half_factor(done[block], x);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<uint32_t*>(&to.solve[16 * warp + 8 * half + g][16 * block + 8 * i + 2 * t]) =
            pack_bf16(x[i][2 * half] * beta[half], x[i][2 * half + 1] * beta[half]);
  }
}

// A block: a chunk of a key head, and up to kHeads of the value heads that read it.
__global__ void __launch_bounds__(kThreads, 4) pairs_kernel(Rows a) {
  __shared__ PairsShared s;
  await_predecessor();
  allow_successor();
  const int ratio = a.v_heads / a.k_heads, groups = (ratio + kHeads - 1) / kHeads, chunk = blockIdx.x;
  const int k_head = blockIdx.y / groups, group = blockIdx.y % groups;
  const int heads = min(kHeads, ratio - group * kHeads), first_head = k_head * ratio + group * kHeads;
  const int64_t seq = blockIdx.z, at = seq * a.len + a.first + int64_t{chunk} * kTokens;
  const int inside = min(kTokens, a.tokens - chunk * kTokens), warp = threadIdx.x / 32;
  copy_rows<kKeys>(threadIdx.x, s.k, a.k + at * a.k_width + k_head * kKeys, a.k_width, inside);
  copy_rows<kKeys>(threadIdx.x, s.q, a.q + at * a.q_width + k_head * kKeys, a.q_width, inside);
  cp_async_commit();
  if (warp < heads) gates(a, s, warp, first_head + warp, at, inside);
  cp_async_wait<0>();
  __syncthreads();
  lengths(s);
  float kk[8][4] = {}, qk[8][4] = {};
  raw_products(s, kk, qk);
  __syncthreads();  // keys and queries are read, lengths are there
  to_lengths(s, kk, qk);
#pragma unroll 1
  for (int slot = 0; slot < heads; ++slot) {
    Chunk& to = a.work[(seq * a.v_heads + first_head + slot) * a.chunks + chunk];
    triangles(s, slot, kk, qk, to);
    __syncwarp();
    invert_diagonal(s.of_head[slot % 2].diagonal[warp]);
    __syncthreads();  // also: what the head before the last left in this place is read
    invert_columns(s, slot, to);
  }
}

}  // namespace fewbit::cuda::delta
