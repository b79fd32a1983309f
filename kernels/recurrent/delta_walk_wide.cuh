#pragma once
// walk_kernel (delta_walk.cuh) for compute capability 9.0a: the block's 64 columns are the rows of wgmma, whose sums
// and first factors lie in registers as those of mma do, and which reads the second factors from shared memory once for
// all four warps. One thread more asks the copy engine for the chunks ahead. Products whose results are not waited for
// stand between those that are, so that the tensor cores have work while a warp rounds a result to the next factor.
#include "kernels/device/barrier.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.cuh"
#include "kernels/recurrent/delta_walk.cuh"

namespace fewbit::cuda::delta {

// Arrays [sequences, tokens, columns] in boxes of kTokens rows: 64 columns, of the outputs 16.
struct Maps {
  CUtensorMap q, k, v, out;
};

using Plane = bf16[kTokens][64];  // rows of 128 bytes in the 128-byte swizzle
// A triangle of Chunk as a square: of every part all pieces, those above the diagonal zeros.
using Square = bf16[kBlocks][2 * kBlocks][2][kPiece];
struct alignas(1024) WideStage {
  Plane k[2], q[2];  // features 0 .. 63 and 64 .. 127
  Plane v;
  Square solve, pairs;
  float of_keys[kTokens], of_queries[kTokens], to_state[kTokens], keep[4];
};
static_assert(sizeof(Chunk) - offsetof(Chunk, of_keys) == 3 * sizeof(float) * kTokens + 16);
constexpr int kStages = 3, kWideThreads = kThreads + 32, kOutColumns = 16;  // of a warp
struct alignas(1024) WideShared {
  WideStage stages[kStages];
  bf16 out[kColumns / kOutColumns][kTokens][kOutColumns];
  uint64_t full[kStages], empty[kStages];
};
constexpr size_t kWideShared = sizeof(WideShared) + 1024;  // the block's space may begin anywhere

#ifdef FEWBIT_SM90A

// What a block works on.
struct WideBlock {
  const Rows& a;
  const Maps& maps;
  WideShared& s;
  int column, head, seq;
};

__device__ __forceinline__ void copy_triangle(Square& to, const bf16* from, uint64_t* full) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i)
    bulk_copy(&to[i][2 * i], from + part_at(i), static_cast<uint32_t>(sizeof(bf16)) * (part_at(i + 1) - part_at(i)),
              full);
}
// The pieces that copy_triangle() leaves alone, by all threads of the block.
__device__ __forceinline__ void clear_above_diagonal(Square& square) {
  constexpr int kWords = sizeof(square[0][0]) / sizeof(uint4);  // of a piece for 16 s
#pragma unroll
  for (int i = 1; i < kBlocks; ++i)
    for (int word = threadIdx.x; word < 2 * i * kWords; word += kWideThreads)
      reinterpret_cast<uint4*>(&square[i])[word] = {};
}

// The copying thread. The caller's rows of the first chunk do not wait for pairs_kernel.
__device__ __forceinline__ void copy_chunks(const WideBlock& block) {
  const Rows& a = block.a;
  const Chunk* chunks = a.work + (int64_t{block.seq} * a.v_heads + block.head) * a.chunks;
  const int key = block.head / (a.v_heads / a.k_heads) * kKeys, value = block.head * a.v_dim + block.column;
  const int first = static_cast<int>(a.first), seq = a.first_seq + block.seq;
  for (int chunk = 0; chunk < a.chunks; ++chunk) {
    const int place = chunk % kStages, row = first + chunk * kTokens;
    WideStage& stage = block.s.stages[place];
    uint64_t* full = &block.s.full[place];
    barrier_await(shared_address(&block.s.empty[place]), chunk / kStages % 2 ^ 1);
    barrier_expect(full, 5 * sizeof(Plane) + sizeof(Chunk));
    bulk_copy_box(&stage.k[0], &block.maps.k, key, row, seq, full);
    bulk_copy_box(&stage.k[1], &block.maps.k, key + 64, row, seq, full);
    bulk_copy_box(&stage.v, &block.maps.v, value, row, seq, full);
    bulk_copy_box(&stage.q[0], &block.maps.q, key, row, seq, full);
    bulk_copy_box(&stage.q[1], &block.maps.q, key + 64, row, seq, full);
    if (chunk == 0) await_predecessor();
    const Chunk& from = chunks[chunk];
    copy_triangle(stage.solve, from.solve, full);
    copy_triangle(stage.pairs, from.pairs, full);
    bulk_copy(stage.of_keys, from.of_keys, sizeof(Chunk) - offsetof(Chunk, of_keys), full);
  }
}

using Sums = float[8][4];
__device__ __forceinline__ float (&flat(Sums& x))[32] { return *reinterpret_cast<float(*)[32]>(&x); }

// Begins sum = S^T rows^T, of keys or queries.
__device__ __forceinline__ void begin_from_state(Sums& sum, const uint32_t (&factor)[8][4], uint32_t rows) {
  const uint64_t b = wgmma_matrix(rows);
  constexpr uint64_t kPlane = sizeof(Plane) / 16;
#pragma unroll
  for (int i = 0; i < 8; ++i) wgmma(flat(sum), factor[i], b + i / 4 * kPlane + i % 4 * 2, i > 0);
  wgmma_commit();
}
// Begins sum (+)= x B, B a lower triangle: the address of a Square.
template <bool kTransposed>
__device__ __forceinline__ void begin_triangle(Sums& sum, const uint32_t (&x)[4][4], uint32_t square, bool add) {
  constexpr uint32_t kPieceBytes = kPiece * sizeof(bf16), kPart = sizeof(Square) / kBlocks;
  const uint64_t b = wgmma_pieces(square, kPieceBytes, 2 * kPieceBytes);
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) wgmma<kTransposed>(flat(sum), x[i], b + i * (kPart / 16), add || i > 0);
  wgmma_commit();
}

// The warp's columns of the outputs of a chunk, by way of shared memory; out [tile][half]: a tile's two 8 x 8 matrices.
__device__ __forceinline__ void send_outputs(const WideBlock& block, const uint32_t (&out)[8][2], int chunk) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bf16(&own)[kTokens][kOutColumns] = block.s.out[warp];
  bulk_store_wait<0>();  // the chunk before has been read
  __syncwarp();
  const uint32_t row = shared_address(&own[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll
  for (int i = 0; i < 8; i += 2)
    stmatrix_transposed(row + i * 8 * static_cast<int>(sizeof(own[0])), out[i][0], out[i][1], out[i + 1][0],
                        out[i + 1][1]);
  publish_shared();
  __syncwarp();
  if (lane == 0) {
    bulk_store_box(&block.maps.out, block.head * block.a.v_dim + block.column + kOutColumns * warp,
                   static_cast<int>(block.a.first) + chunk * kTokens, block.a.first_seq + block.seq,
                   shared_address(&own));
    bulk_store_commit();
  }
}

// The multiplying warps' chunks; `state` is S^T.
__device__ __forceinline__ void take_chunks(const WideBlock& block, float (&state)[64]) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  WideShared& s = block.s;
  Sums x, out = {};
  uint32_t factor[8][4], r[4][4], u[4][4], sent[8][2] = {};
  const auto state_as_factor = [&] {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) factor[i][j] = pack_bf16(state[8 * i + 2 * j], state[8 * i + 2 * j + 1]);
  };
  state_as_factor();
#pragma unroll 1
  for (int chunk = 0; chunk < block.a.chunks; ++chunk) {
    const WideStage& stage = s.stages[chunk % kStages];
    // One value for the warp, so that descriptors are worked out beside the lanes' arithmetic.
    const uint32_t base = __shfl_sync(0xffffffffu, shared_address(&stage), 0);
    barrier_await(shared_address(&s.full[chunk % kStages]), chunk / kStages % 2);
    wgmma_fence();
    begin_from_state(x, factor, base + offsetof(WideStage, k));
    begin_from_state(out, factor, base + offsetof(WideStage, q));
    if (chunk > 0) send_outputs(block, sent, chunk - 1);
    wgmma_wait<1>();
    pin(flat(x));
    const auto value = [&](int row, int piece) { return &stage.v[row][(piece ^ row % 8) * 8]; };
    rest_of_values(r, x, value, stage.of_keys);
    wgmma_fence();
    begin_triangle<true>(x, r, base + offsetof(WideStage, solve), false);
    const float keep = stage.keep[0];
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] *= keep;
    wgmma_wait<1>();
    pin(flat(out));
#pragma unroll
    for (int i = 0; i < 8; ++i) times_columns(out[i], stage.of_queries + 8 * i + 2 * t);
    wgmma_wait<0>();
    pin(flat(x));
#pragma unroll
    for (int i = 0; i < 4; ++i) as_factor(u[i], x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) times_columns(x[i], stage.to_state + 8 * i + 2 * t);
#pragma unroll
    for (int i = 0; i < 4; ++i) as_factor(r[i], x[2 * i], x[2 * i + 1]);
    wgmma_fence();
    const uint64_t change = wgmma_matrix_transposed(base + offsetof(WideStage, k), sizeof(Plane));
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma<true>(state, r[i], change + i * 128, true);
    wgmma_commit();
    begin_triangle<false>(out, u, base + offsetof(WideStage, pairs), true);
    wgmma_wait<1>();
    pin(state);
    state_as_factor();
    wgmma_wait<0>();
    pin(flat(out));
    if (lane < kArrivingLanes) barrier_arrive(&s.empty[chunk % kStages]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) sent[i][j] = pack_bf16(out[i][2 * j], out[i][2 * j + 1]);
  }
  send_outputs(block, sent, block.a.chunks - 1);
  bulk_store_wait<0>();  // until then the block's shared memory is needed
}

// A multiplying warp's part of the block: the columns of the state come in and go back.
__device__ __forceinline__ void walk(const WideBlock& block) {
  const Rows& a = block.a;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float* kept =
      a.state ? a.state + (int64_t{block.seq} * a.v_heads + block.head) * kKeys * a.v_dim + block.column + 16 * warp + g
              : nullptr;
  const auto at = [&](int i) { return int64_t{i / 4 * 8 + 2 * t + i % 2} * a.v_dim + i % 4 / 2 * 8; };
  float state[64] = {};
  if (kept && !a.from_zero)
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = kept[at(i)];
  await_predecessor();
  take_chunks(block, state);
  if (kept)
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[at(i)] = state[i];
}

#endif

__global__ void __launch_bounds__(kWideThreads, 1)
    walk_wide_kernel(const __grid_constant__ Rows a, const __grid_constant__ Maps maps) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(1024) uint8_t space[];
  WideShared& s = *reinterpret_cast<WideShared*>(space + (1024 - shared_address(space) % 1024) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(&s.full[i], 1), barrier_init(&s.empty[i], kArrivingLanes * 4);
    barrier_publish();
  }
  for (WideStage& stage : s.stages) clear_above_diagonal(stage.solve), clear_above_diagonal(stage.pairs);
  publish_shared();
  __syncthreads();
  const WideBlock block{
      a, maps, s, static_cast<int>(blockIdx.x) * kColumns, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  if (threadIdx.x < kThreads)
    walk(block);
  else if (elected())
    copy_chunks(block);
#endif
}

}  // namespace fewbit::cuda::delta
