#pragma once
// walk_kernel (delta_walk.cuh) for compute capability 9.0a: the block's 64 columns are the rows of wgmma, whose sums
// and first factors lie in registers as those of mma do, and which reads the second factors from shared memory once for
// all four warps. Four warps more do nothing but copy the next chunks but one into shared memory.
#include "kernels/device/barrier.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/recurrent/delta_walk.cuh"

namespace fewbit::cuda::delta {

using Plane = bf16[kTokens][64];  // rows of 128 bytes in the 128-byte swizzle
struct alignas(1024) WideStage {
  Plane k[2], q[2];  // features 0 .. 63 and 64 .. 127
  Plane solve, pairs;
  bf16 v[kTokens][kColumns + 8];
  float of_keys[kTokens], of_queries[kTokens], to_state[kTokens], keep[4];
};
static_assert(sizeof(Chunk) - offsetof(Chunk, of_keys) == 3 * sizeof(float) * kTokens + 16);
constexpr int kStages = 3, kWideThreads = 2 * kThreads;
constexpr size_t kWideShared = kStages * sizeof(WideStage) + 1024;  // the block's space may begin anywhere

#ifdef FEWBIT_SM90A

// Eight values from `piece` * 8 on of a row.
__device__ __forceinline__ bf16* swizzled(Plane& plane, int row, int piece) {
  return &plane[row][(piece ^ row % 8) * 8];
}

__device__ __forceinline__ void load_planes(int thread, Plane (&to)[2], const bf16* from, int64_t width, int inside) {
#pragma unroll
  for (int i = thread; i < kTokens * 16; i += kThreads) {
    const int row = i / 16, piece = i % 16;
    cp_async16(swizzled(to[piece / 8], row, piece % 8), from + (row < inside ? row : 0) * width + 8 * piece,
               row < inside);
  }
}

// The caller's rows.
__device__ __forceinline__ void load_rows(int thread, const Rows& a, WideStage& s, int64_t seq, int head, int column,
                                          int chunk) {
  const int64_t at = seq * a.len + a.first + int64_t{chunk} * kTokens;
  const int inside = min(kTokens, a.tokens - chunk * kTokens), k_head = head / (a.v_heads / a.k_heads);
  load_planes(thread, s.k, a.k + at * a.k_width + k_head * kKeys, a.k_width, inside);
  load_planes(thread, s.q, a.q + at * a.q_width + k_head * kKeys, a.q_width, inside);
  copy_rows<kColumns>(thread, s.v, a.v + at * a.v_width + int64_t{head} * a.v_dim + column, a.v_width, inside);
}
__device__ __forceinline__ void load_chunk(int thread, const Chunk& from, WideStage& s) {
#pragma unroll
  for (int i = thread; i < kTokens * kTokens / 8; i += kThreads) {
    const int row = i / 8, piece = i % 8;
    if (piece / 2 >= row / 16) cp_async16(swizzled(s.solve, row, piece), &from.solve[row][piece * 8]);
    if (piece / 2 <= row / 16) cp_async16(swizzled(s.pairs, row, piece), &from.pairs[row][piece * 8]);
  }
  constexpr int kFactors = (sizeof(Chunk) - offsetof(Chunk, of_keys)) / 16;
  if (thread < kFactors) cp_async16(s.of_keys + 4 * thread, from.of_keys + 4 * thread);
}
// The blocks that load_chunk() leaves alone.
__device__ __forceinline__ void clear_triangles(WideStage& s) {
  for (int i = threadIdx.x; i < kTokens * kTokens / 8; i += kThreads) {
    const int row = i / 8, piece = i % 8;
    if (piece / 2 < row / 16) *reinterpret_cast<uint4*>(swizzled(s.solve, row, piece)) = {};
    if (piece / 2 > row / 16) *reinterpret_cast<uint4*>(swizzled(s.pairs, row, piece)) = {};
  }
}

using Sums = float[8][4];
__device__ __forceinline__ float (&flat(Sums& x))[32] { return *reinterpret_cast<float(*)[32]>(&x); }

// A chunk; `state` is S^T, `to` this warp's columns of the outputs.
__device__ __forceinline__ void wide_step(WideStage& s, float (&state)[64], bf16* to, int64_t width, int inside) {
  const int t = threadIdx.x % 4;
  Sums x, out;
  uint32_t factor[8][4], r[4][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) factor[i][j] = pack_bf16(state[8 * i + 2 * j], state[8 * i + 2 * j + 1]);
  const uint64_t keys = wgmma_matrix(s.k), queries = wgmma_matrix(s.q);
  constexpr uint64_t kPlane = sizeof(Plane) / 16;
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 8; ++i) wgmma(flat(x), factor[i], keys + i / 4 * kPlane + i % 4 * 2, i > 0);
  wgmma_commit();
#pragma unroll
  for (int i = 0; i < 8; ++i) wgmma(flat(out), factor[i], queries + i / 4 * kPlane + i % 4 * 2, i > 0);
  wgmma_commit();
  wgmma_wait<1>();
  pin(flat(x));
  rest_of_values(r, x, s.v, s.of_keys);
  wgmma_fence();
  const uint64_t solve = wgmma_matrix_transposed(s.solve, sizeof(Plane));
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma<true>(flat(x), r[i], solve + i * 128, i > 0);
  wgmma_commit();
  wgmma_wait<1>();
  pin(flat(out));
  const float keep = s.keep[0];
#pragma unroll
  for (int i = 0; i < 64; ++i) state[i] *= keep;
#pragma unroll
  for (int i = 0; i < 8; ++i) times_columns(out[i], s.of_queries + 8 * i + 2 * t);
  wgmma_wait<0>();
  pin(flat(x));
  uint32_t u[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) as_factor(u[i], x[2 * i], x[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) times_columns(x[i], s.to_state + 8 * i + 2 * t);
#pragma unroll
  for (int i = 0; i < 4; ++i) as_factor(r[i], x[2 * i], x[2 * i + 1]);
  wgmma_fence();
  const uint64_t pairs = wgmma_matrix(s.pairs), change = wgmma_matrix_transposed(s.k, sizeof(Plane));
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma(flat(out), u[i], pairs + 2 * i, true);
  wgmma_commit();
#pragma unroll
  for (int i = 0; i < 4; ++i) wgmma<true>(state, r[i], change + i * 128, true);
  wgmma_commit();
  wgmma_wait<1>();
  pin(flat(out));
  store_outputs(out, to, width, inside);
  wgmma_wait<0>();
  pin(state);
}

// The copying warps. The caller's rows of the first chunk do not wait for pairs_kernel.
__device__ __forceinline__ void copy_chunks(const Rows& a, WideStage* stages, int64_t seq, int head, int column) {
  const int thread = threadIdx.x - kThreads;
  const Chunk* chunks = a.work + (seq * a.v_heads + head) * a.chunks;
  load_rows(thread, a, stages[0], seq, head, column, 0);
  await_predecessor();
  load_chunk(thread, chunks[0], stages[0]);
  cp_async_commit();
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    // The barrier before said that the last chunk but one, whose place this is, has been multiplied.
    if (const int next = chunk + 1; next < a.chunks) {
      load_rows(thread, a, stages[next % kStages], seq, head, column, next);
      load_chunk(thread, chunks[next], stages[next % kStages]);
    }
    cp_async_commit();
    cp_async_wait<1>();
    publish_shared();
    named_barrier_sync(1, kWideThreads);
  }
}

// The multiplying warps.
__device__ __forceinline__ void take_chunks(const Rows& a, WideStage* stages, int64_t seq, int head, int column) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, own = column + 16 * warp;
  for (int i = 0; i < kStages; ++i) clear_triangles(stages[i]);
  publish_shared();
  float* kept = a.state ? a.state + (seq * a.v_heads + head) * kKeys * a.v_dim + own + g : nullptr;
  const auto at = [&](int i) { return int64_t{i / 4 * 8 + 2 * t + i % 2} * a.v_dim + i % 4 / 2 * 8; };
  float state[64] = {};
  if (kept && !a.from_zero)
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = kept[at(i)];
  await_predecessor();
  const int64_t width = int64_t{a.v_heads} * a.v_dim;
  bf16* to = a.out + (seq * a.len + a.first) * width + int64_t{head} * a.v_dim + own;
#pragma unroll 1
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    named_barrier_sync(1, kWideThreads);
    wide_step(stages[chunk % kStages], state, to + int64_t{chunk} * kTokens * width, width, a.tokens - chunk * kTokens);
  }
  if (!kept) return;
#pragma unroll
  for (int i = 0; i < 64; ++i) kept[at(i)] = state[i];
}

#endif

__global__ void __launch_bounds__(kWideThreads, 1) walk_wide_kernel(Rows a) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(1024) uint8_t space[];
  auto* stages = reinterpret_cast<WideStage*>(space + (1024 - shared_address(space) % 1024) % 1024);
  const int column = blockIdx.x * kColumns, head = blockIdx.y;
  const int64_t seq = blockIdx.z;
  if (threadIdx.x < kThreads)
    take_chunks(a, stages, seq, head, column);
  else
    copy_chunks(a, stages, seq, head, column);
#endif
}

}  // namespace fewbit::cuda::delta
