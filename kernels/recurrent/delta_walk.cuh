#pragma once
// walk_kernel takes the chunks of a head one after the other. A warp has 16 columns of the head's state for itself,
// transposed: S^T [16, 128] is the sum of its products as it lies in registers, and the layout of a sum of
// mma.m16n8k16 is that of a first factor. So the five products of a chunk,
//   R = V^T - (S^T K^T) of_keys     U = R solve     out^T = (S^T Q^T) of_queries + U pairs^T
//   S^T = keep S^T + (U to_state) K
// follow each other without shared memory between them and without a barrier; warps share only the second factors.
#include "kernels/recurrent/delta_pairs.cuh"

namespace fewbit::cuda::delta {

constexpr int kColumns = 16 * kThreads / 32;  // of the state, of a block
struct Stage {
  bf16 k[kTokens][kKeyRow], q[kTokens][kKeyRow];
  bf16 v[kTokens][kColumns + 8];
  Chunk chunk;
};

__device__ __forceinline__ void load_stage(const Rows& a, Stage& s, int64_t seq, int head, int column, int chunk) {
  const int64_t at = seq * a.len + a.first + int64_t{chunk} * kTokens;
  const int inside = min(kTokens, a.tokens - chunk * kTokens), k_head = head / (a.v_heads / a.k_heads);
  const Chunk& from = a.work[(seq * a.v_heads + head) * a.chunks + chunk];
  copy_rows<kKeys>(threadIdx.x, s.k, a.k + at * a.k_width + k_head * kKeys, a.k_width, inside);
  copy_rows<kKeys>(threadIdx.x, s.q, a.q + at * a.q_width + k_head * kKeys, a.q_width, inside);
  copy_rows<kColumns>(threadIdx.x, s.v, a.v + at * a.v_width + int64_t{head} * a.v_dim + column, a.v_width, inside);
  for (int i = threadIdx.x * 16; i < static_cast<int>(sizeof(Chunk)); i += kThreads * 16)
    cp_async16(reinterpret_cast<uint8_t*>(&s.chunk) + i, reinterpret_cast<const uint8_t*>(&from) + i);
  cp_async_commit();
}

// Two tiles of sums as the first factor of a product.
__device__ __forceinline__ void as_factor(uint32_t (&r)[4], const float (&low)[4], const float (&high)[4]) {
  r[0] = pack_bf16(low[0], low[1]), r[1] = pack_bf16(low[2], low[3]);
  r[2] = pack_bf16(high[0], high[1]), r[3] = pack_bf16(high[2], high[3]);
}
__device__ __forceinline__ void times_columns(float (&x)[4], const float* factors) {
  const float2 f = *reinterpret_cast<const float2*>(factors);
  x[0] *= f.x, x[1] *= f.y, x[2] *= f.x, x[3] *= f.y;
}

// sum[tile] += S^T rows^T, a tile for 8 tokens; `rows` are keys or queries.
__device__ __forceinline__ void from_state(float (&sum)[8][4], const uint32_t (&state)[8][4],
                                           const bf16 (*rows)[kKeyRow]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
#pragma unroll
    for (int tile = 0; tile < 8; tile += 4) {
      uint32_t b[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) ldmatrix(b[i], &rows[8 * (tile + i) + lane % 8][16 * k + lane / 8 * 8]);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        mma_bf16(sum[tile + i % 4], state[k + i / 4], b[i % 4][i / 4 * 2], b[i % 4][i / 4 * 2 + 1]);
    }
  }
}

// sum += x B for a lower triangle: B[s, t] is there for s <= t. kTransposed: rows of its pieces are s.
template <bool kTransposed>
__device__ __forceinline__ void times_triangle(float (&sum)[8][4], const uint32_t (&x)[4][4], const bf16* triangle) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
#pragma unroll
    for (int pair = k; pair < kBlocks; ++pair) {
      uint32_t b[4];
      const bf16* row = triangle + piece_at(k, 0, 2 * pair) + lane / 8 * kPiece + lane % 8 * 8;
      kTransposed ? ldmatrix_transposed(b, row) : ldmatrix(b, row);
      mma_bf16(sum[2 * pair], x[k], b[0], b[1]);
      mma_bf16(sum[2 * pair + 1], x[k], b[2], b[3]);
    }
  }
}

// x = V^T - x of_keys, as the first factors of the next product.
// `values(row, piece)`: where eight columns of a token stand.
template <class F>
__device__ __forceinline__ void rest_of_values(uint32_t (&r)[4][4], float (&x)[8][4], F&& values,
                                               const float* of_keys) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    uint32_t v[4];
    ldmatrix_transposed(v, values(16 * pair + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float(&y)[4] = x[2 * pair + i];
      times_columns(y, of_keys + 16 * pair + 8 * i + 2 * t);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t two = v[2 * i + half];
        y[2 * half] = __uint_as_float(two << 16) - y[2 * half];
        y[2 * half + 1] = __uint_as_float(two & 0xffff0000u) - y[2 * half + 1];
      }
    }
    as_factor(r[pair], x[2 * pair], x[2 * pair + 1]);
  }
}

__device__ __forceinline__ void store_outputs(const float (&x)[8][4], bf16* to, int64_t width, int inside) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < 8; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t two = transposed(pack_bf16(x[tile][2 * half], x[tile][2 * half + 1]));
      if (8 * tile + g < inside) *reinterpret_cast<uint32_t*>(to + (8 * tile + g) * width + 8 * half + 2 * t) = two;
    }
}

// A chunk; `state` is S^T, `to` this warp's columns of the outputs.
__device__ __forceinline__ void step(const Stage& s, float (&state)[16][4], bf16* to, int64_t width, int inside) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  const Chunk& c = s.chunk;
  float x[8][4] = {}, out[8][4] = {};
  {
    uint32_t factor[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) as_factor(factor[i], state[2 * i], state[2 * i + 1]);
    from_state(x, factor, s.k);
    from_state(out, factor, s.q);
  }
  uint32_t r[4][4];
  rest_of_values(
      r, x, [&](int row, int piece) { return &s.v[row][8 * piece]; }, c.of_keys);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[i][j] = 0;
    times_columns(out[i], c.of_queries + 8 * i + 2 * t);
  }
  times_triangle<true>(x, r, c.solve);
#pragma unroll
  for (int i = 0; i < 4; ++i) as_factor(r[i], x[2 * i], x[2 * i + 1]);
  times_triangle<false>(out, r, c.pairs);
  const float keep = c.keep[0];
#pragma unroll
  for (int i = 0; i < 16; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) state[i][j] *= keep;
#pragma unroll
  for (int i = 0; i < 8; ++i) times_columns(x[i], c.to_state + 8 * i + 2 * t);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    as_factor(r[k], x[2 * k], x[2 * k + 1]);
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      uint32_t b[4];
      ldmatrix_transposed(b, &s.k[16 * k + lane / 8 % 2 * 8 + lane % 8][16 * pair + lane / 16 * 8]);
      mma_bf16(state[2 * pair], r[k], b[0], b[1]);
      mma_bf16(state[2 * pair + 1], r[k], b[2], b[3]);
    }
  }
  store_outputs(out, to, width, inside);
}

__global__ void __launch_bounds__(kThreads) walk_kernel(Rows a) {
  extern __shared__ __align__(16) uint8_t shared[];
  Stage* stages = reinterpret_cast<Stage*>(shared);
  const int column = blockIdx.x * kColumns, head = blockIdx.y;
  const int64_t seq = blockIdx.z;
  load_stage(a, stages[0], seq, head, column, 0);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, own = column + 16 * warp;
  float* kept = a.state ? a.state + (seq * a.v_heads + head) * kKeys * a.v_dim + own + g : nullptr;
  const auto at = [&](int tile, int i) { return int64_t{8 * tile + 2 * t + i % 2} * a.v_dim + i / 2 * 8; };
  float state[16][4] = {};
  if (kept && !a.from_zero)
#pragma unroll
    for (int tile = 0; tile < 16; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) state[tile][i] = kept[at(tile, i)];
  const int64_t width = int64_t{a.v_heads} * a.v_dim;
  bf16* to = a.out + (seq * a.len + a.first) * width + int64_t{head} * a.v_dim + own;
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    if (chunk + 1 < a.chunks) {
      load_stage(a, stages[(chunk + 1) % 2], seq, head, column, chunk + 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    step(stages[chunk % 2], state, to + int64_t{chunk} * kTokens * width, width, a.tokens - chunk * kTokens);
    __syncthreads();
  }
  if (!kept) return;
#pragma unroll
  for (int tile = 0; tile < 16; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) kept[at(tile, i)] = state[tile][i];
}

}  // namespace fewbit::cuda::delta
