#pragma once
// The triangles of a chunk of one head from the products of its keys and queries (delta_pairs.cuh), and the inverse of
// I + A. A warp has a band of 16 rows, then the columns of the same number.
#include "kernels/device/launch.cuh"
#include "kernels/recurrent/delta_pairs.cuh"

namespace fewbit::cuda::delta {

// Where a lane's two neighbours of a piece stand.
__device__ __forceinline__ uint32_t& two_of(bf16* triangle, int block, int half, int piece) {
  return reinterpret_cast<uint32_t*>(triangle + piece_at(block, half, piece))[threadIdx.x % 32];
}

// The blocks on the diagonal: A to shared memory, P to `to`. A decay is taken for each pair.
__device__ __forceinline__ void diagonal_block(PairsShared& s, int slot, int band, const float (&kk)[2][4],
                                               const float (&qk)[2][4], Chunk& to) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const float* c = s.c[slot] + 16 * band;
  const float* to_k = s.to_k + 16 * band;
  auto& diagonal = s.of_head[slot].block[band].diagonal;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int column = 8 * tile + 2 * t;
    const float2 c_column = *reinterpret_cast<const float2*>(&c[column]);
    const float2 of_k = *reinterpret_cast<const float2*>(&to_k[column]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t& pair = two_of(to.pairs, band, tile, 2 * band + half);
      if (half < tile) {  // above the diagonal
        pair = 0;
        continue;
      }
      const int row = 8 * half + g;
      const float f0 = column <= row ? exp2_fast(c[row] - c_column.x) * of_k.x : 0.f;
      const float f1 = column + 1 <= row ? exp2_fast(c[row] - c_column.y) * of_k.y : 0.f;
      const float of_q = s.to_q[16 * band + row], of_row = to_k[row] * s.beta[slot][16 * band + row];
      pair = pack_bf16(qk[tile][2 * half] * f0 * of_q, qk[tile][2 * half + 1] * f1 * of_q);
      // What is on and above the diagonal here is not read.
      *reinterpret_cast<float2*>(&diagonal[row][column]) = {kk[tile][2 * half] * f0 * of_row,
                                                            kk[tile][2 * half + 1] * f1 * of_row};
    }
  }
}

// The band of A into shared memory, that of P to `to`. Left of the diagonal the decay between two tokens is that up to
// the band's begin times that from there on, neither above 1.
__device__ __forceinline__ void triangles(PairsShared& s, int slot, int band, const float (&kk)[8][4],
                                          const float (&qk)[8][4], Chunk& to) {
  const int lane = threadIdx.x % 32, first = 16 * band + lane / 4;
  const float* c = s.c[slot];
  const float begin = band > 0 ? c[16 * band - 1] : 0.f;
  float of_k[2], of_q[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half;
    const float f = exp2_fast(c[row] - begin);
    of_k[half] = -f * s.to_k[row] * s.beta[slot][row], of_q[half] = f * s.to_q[row];
  }
#pragma unroll
  for (int pair = 0; pair < kBlocks; ++pair) {
    if (pair == band)
      diagonal_block(s, slot, band, reinterpret_cast<const float(&)[2][4]>(kk[2 * pair]),
                     reinterpret_cast<const float(&)[2][4]>(qk[2 * pair]), to);
    if (pair >= band) continue;
#pragma unroll
    for (int tile = 2 * pair; tile < 2 * pair + 2; ++tile) {
      const int column = 8 * tile + lane % 4 * 2;
      const float2 c_column = *reinterpret_cast<const float2*>(&c[column]);
      const float2 length = *reinterpret_cast<const float2*>(&s.to_k[column]);
      const float f0 = exp2_fast(begin - c_column.x) * length.x, f1 = exp2_fast(begin - c_column.y) * length.y;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        two_of(to.pairs, pair, tile % 2, 2 * band + half) =
            pack_bf16(qk[tile][2 * half] * f0 * of_q[half], qk[tile][2 * half + 1] * f1 * of_q[half]);
        *reinterpret_cast<uint32_t*>(&s.of_head[slot].below[first + 8 * half][column]) =
            pack_f16(kk[tile][2 * half] * f0 * of_k[half], kk[tile][2 * half + 1] * f1 * of_k[half]);
      }
    }
  }
}

// The factors of rows.
__device__ __forceinline__ void row_factors(const PairsShared& s, int slot, int t, Chunk& to) {
  const float* c = s.c[slot];
  const float begin = exp2_fast(c[t]);
  to.of_keys[t] = begin * s.to_k[t];
  to.of_queries[t] = begin * s.to_q[t];
  to.to_state[t] = exp2_fast(c[kTokens - 1] - c[t]) * s.to_k[t];
  if (t == kTokens - 1) *reinterpret_cast<float4*>(to.keep) = {begin, begin, begin, begin};
}

// Blocks I + A on the diagonal are replaced by their inverses, by one warp: half a warp has a block of its own, and
// each lane a column of it.
__device__ __forceinline__ void invert_diagonals(PairsShared& s, int band, int heads) {
  const int lane = threadIdx.x % 32, column = lane % 16;
#pragma unroll 1
  for (int slot = 0; slot < heads; slot += 2) {
    const bool there = slot + lane / 16 < heads;
    auto& block = s.of_head[there ? slot + lane / 16 : slot].block[band];
    float x[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float sum[2] = {i == column ? 1.f : 0.f, 0.f};
#pragma unroll
      for (int m = 0; m < i; m += 4) {
        const float4 a = *reinterpret_cast<const float4*>(&block.diagonal[i][m]);
        const float four[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (m + j < i) sum[j % 2] = fmaf(-four[j], x[m + j], sum[j % 2]);
      }
      x[i] = sum[0] + sum[1];
    }
    __syncwarp();
    if (there)
#pragma unroll
      for (int i = 0; i < kBlock; ++i) block.inverse[i][column] = __float2half_rn(x[i]);
  }
}

__device__ __forceinline__ void as_half_factor(uint32_t (&r)[4], const float (&x)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) r[i] = pack_f16(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
}

// Columns 16 band .. 16 band + 15 of the inverse, transposed, times their betas, to `to`: the block on the diagonal,
// then those below it, each from the ones before.
__device__ __forceinline__ void invert_columns(const PairsShared& s, int slot, int band, Chunk& to) {
  const int lane = threadIdx.x % 32, g = lane / 4, low = lane / 16 * 8 + lane % 8, high = lane / 8 % 2 * 8;
  const auto& own = s.of_head[slot];
  const float beta[2] = {s.beta[slot][16 * band + g], s.beta[slot][16 * band + g + 8]};
  uint32_t done[kBlocks][4];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block < band) continue;
    const auto store = [&](int i, float x, float y) {  // register i of a first factor
      two_of(to.solve, band, i % 2, 2 * block + i / 2) = pack_bf16(x * beta[i % 2], y * beta[i % 2]);
    };
    uint32_t inverse[4];
    if (block == band) {
      ldmatrix_transposed(done[block], &own.block[block].inverse[low][high]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&done[block][i]));
        store(i, two.x, two.y);
      }
      continue;
    }
    float x[2][4] = {}, y[2][4] = {};
#pragma unroll
    for (int m = 0; m < block; ++m) {
      if (m < band) continue;
      uint32_t b[4];
      ldmatrix(b, &own.below[16 * block + low][16 * m + high]);
      mma_f16(x[0], done[m], b[0], b[1]);
      mma_f16(x[1], done[m], b[2], b[3]);
    }
    uint32_t left[4];
    as_half_factor(left, x);
    ldmatrix(inverse, &own.block[block].inverse[low][high]);
    mma_f16(y[0], left, inverse[0], inverse[1]);
    mma_f16(y[1], left, inverse[2], inverse[3]);
    as_half_factor(done[block], y);
#pragma unroll
    for (int i = 0; i < 4; ++i) store(i, y[i / 2][i % 2 * 2], y[i / 2][i % 2 * 2 + 1]);
  }
}

// A block: a chunk of a key head, and up to kHeads of the value heads that read it.
__global__ void __launch_bounds__(kThreads, 4) pairs_kernel(Rows a) {
  __shared__ __align__(16) PairsShared s;
  await_predecessor();
  allow_successor();
  const int ratio = a.v_heads / a.k_heads, groups = (ratio + kHeads - 1) / kHeads, each = (ratio + groups - 1) / groups;
  const int chunk = blockIdx.x, k_head = blockIdx.y / groups, group = blockIdx.y % groups;
  const int heads = min(each, ratio - group * each), first_head = k_head * ratio + group * each;
  const int64_t seq = blockIdx.z, at = seq * a.len + a.first + int64_t{chunk} * kTokens;
  const int inside = min(kTokens, a.tokens - chunk * kTokens), warp = threadIdx.x / 32;
  copy_rows<kKeys>(threadIdx.x, s.k, a.k + at * a.k_width + k_head * kKeys, a.k_width, inside);
  copy_rows<kKeys>(threadIdx.x, s.q, a.q + at * a.q_width + k_head * kKeys, a.q_width, inside);
  cp_async_commit();
  if (warp < heads) gates(a, s, warp, first_head + warp, at, inside);
  cp_async_wait<0>();
  __syncthreads();
  // Bands are of different lengths, and warps of one number share a scheduler: blocks side by side begin elsewhere.
  const int band = (warp + chunk / 4) % kBlocks;
  float kk[8][4] = {}, qk[8][4] = {};
  raw_products(s, band, kk, qk);
  __syncthreads();  // keys and queries are read, lengths are there
  Chunk* to = a.work + (seq * a.v_heads + first_head) * a.chunks + chunk;  // of the first head
#pragma unroll 1
  for (int slot = 0; slot < heads; ++slot) triangles(s, slot, band, kk, qk, to[int64_t{slot} * a.chunks]);
  for (int i = threadIdx.x; i < heads * kTokens; i += kThreads)
    row_factors(s, i / kTokens, i % kTokens, to[i / kTokens * int64_t{a.chunks}]);
  __syncwarp();
  invert_diagonals(s, band, heads);
  __syncthreads();
#pragma unroll 1
  for (int slot = 0; slot < heads; ++slot) invert_columns(s, slot, band, to[int64_t{slot} * a.chunks]);
}

}  // namespace fewbit::cuda::delta
