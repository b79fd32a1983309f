#pragma once
// The half of a chunk that does not depend on the state, and so is made for all chunks at once. With c[t] the sum of
// the logarithms of the decays of the chunk up to and with token t (delta_chunk_cpu.cpp has the equations),
//   A[t, s] = beta_t exp(c[t] - c[s]) k_t . k_s  (s < t),   P[t, s] = exp(c[t] - c[s]) q_t . k_s  (s <= t)
// and what the tokens write is U = (I + A)^-1 diag(beta) (V - diag(exp(c)) K S). Differences of c are never positive
// below the diagonal, so that nothing overflows. Products are of the raw bf16 rows, which are exact; their lengths come
// in as factors behind them. The inverse is blocked by 16: substitution within a block, then products of blocks in f16,
// which is enough: T[t, s] is k_t . M k_s with M a product of decays and of I - beta k k^T, none of which makes
// anything longer, so that neither A nor T has a value beyond 1, and T is rounded to bf16 in the end.
#include "kernels/device/barrier.cuh"
#include "kernels/device/exponential.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda::delta {

using bf16 = __nv_bfloat16;
constexpr int kTokens = 64;                  // of a chunk
constexpr int kKeys = 128;                   // features of a key
constexpr float kOfQueries = 0.0883883476f;  // 1 / sqrt(kKeys)
constexpr int kBlock = 16, kBlocks = kTokens / kBlock;
constexpr int kHeads = 3;  // value heads that a block makes at most
constexpr int kThreads = 128;
constexpr int kKeyRow = kKeys + 8, kTokenRow = kTokens + 8;  // rows in shared memory: eight of them meet all banks
constexpr int kInverseRow = kBlock + 8;                      // likewise

// A lower triangle of 64 x 64 in pieces of 8 x 8, 128 neighbouring bytes each, as wgmma takes them without a swizzle
// and as a warp holds them: a piece is written by one store of a warp. The first index of a second factor in 16s (s /
// 16) picks a part, which has only what is on and below the diagonal, t >= 16 (s / 16): pieces of neighbouring s, then
// of t.
constexpr int kPiece = 64;  // values
__host__ __device__ constexpr int part_at(int block) { return kPiece * 2 * (2 * kBlocks + 1 - block) * block; }
constexpr int kTriangle = part_at(kBlocks);
// The piece of 8 tokens s from 16 block + 8 half on and 8 tokens t from 8 piece on.
__host__ __device__ constexpr int piece_at(int block, int half, int piece) {
  return part_at(block) + kPiece * (2 * (piece - 2 * block) + half);
}

// What the walk needs of a chunk of a value head.
struct alignas(16) Chunk {
  bf16 solve[kTriangle];      // ((I + A)^-1 diag(beta)) transposed: rows of a piece are s
  bf16 pairs[kTriangle];      // P: rows of a piece are t
  float of_keys[kTokens];     // exp(c[t]) / |k_t|
  float of_queries[kTokens];  // exp(c[t]) / |q_t| / sqrt(kKeys)
  float to_state[kTokens];    // exp(c[last] - c[s]) / |k_s|
  float keep[4];              // exp(c[last]), four times: 16 bytes are copied at once
};

struct Rows {
  const bf16 *q, *k, *v, *beta, *decay;
  int64_t q_width, k_width, v_width;  // from row to row
  const float *a_log, *dt_bias;
  float* state;  // or null: begins at zero and is not kept
  bf16* out;
  Chunk* work;         // [seqs, v_heads, chunks]
  int64_t len, first;  // tokens of a sequence, and the first of them that is taken
  int tokens, chunks;  // that are taken, of a sequence
  int k_heads, v_heads, v_dim;
  int first_seq;   // the one that the pointers are at
  bool from_zero;  // the state is not read
};

// The 64 rows of a matrix of kColumns columns at `from` into shared memory, by threads 0 .. kThreads - 1; zeros from
// row `inside` on. A thread stays in its column, so that from row to row its addresses only move on.
template <int kColumns, int kRow>
__device__ __forceinline__ void copy_rows(int thread, bf16 (*to)[kRow], const bf16* from, int64_t width, int inside) {
  constexpr int kAcross = kColumns / 8, kDown = kThreads / kAcross;
  const int row = thread / kAcross, column = thread % kAcross * 8;
  const uint32_t first = shared_address(&to[row][column]);
  const bf16* at = from + row * width + column;
#pragma unroll
  for (int i = 0; i < kTokens; i += kDown) {
    const bool there = row + i < inside;
    cp_async16(first + i * kRow * static_cast<int>(sizeof(bf16)), there ? at : from, there);
    at += kDown * width;
  }
}

struct PairsShared {
  union {
    struct {
      bf16 k[kTokens][kKeyRow], q[kTokens][kKeyRow];
    };
    struct {
      __half below[kTokens][kTokenRow];  // -A below its blocks on the diagonal
      union {
        float diagonal[kBlock][kBlock + 4];  // a block of A on the diagonal
        __half inverse[kBlock][kInverseRow];
      } block[kBlocks];
    } of_head[kHeads];
  };
  float c[kHeads][kTokens], beta[kHeads][kTokens];  // c in powers of two
  float to_k[kTokens], to_q[kTokens];
};

// Decays and betas of a head, by one warp. `at` is the index of its first token, from which on `inside` are there.
__device__ __forceinline__ void gates(const Rows& a, PairsShared& s, int slot, int head, int64_t at, int inside) {
  const int lane = threadIdx.x % 32;
  const float rate = expf(a.a_log[head]);
  float g[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    float beta = 0;
    if (t < inside) {
      const int64_t from = (at + t) * a.v_heads + head;
      g[i] = -rate * softplus(to_f32(a.decay[from]) + a.dt_bias[head]);
      beta = 1.f / (1.f + expf(-to_f32(a.beta[from])));
    }
    s.beta[slot][t] = beta;
  }
  float sum = g[0] + g[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += below;
  }
  s.c[slot][2 * lane] = (sum - g[1]) * kLog2e, s.c[slot][2 * lane + 1] = sum * kLog2e;
}

// K K^T and Q K^T of the raw rows: rows 16 band .. 16 band + 15, tiles of 8 columns up to the diagonal. Puts the
// factors that bring these rows to their lengths into shared memory.
__device__ __forceinline__ void raw_products(PairsShared& s, int band, float (&kk)[8][4], float (&qk)[8][4]) {
  const int lane = threadIdx.x % 32;
  float qq[2][4] = {};
#pragma unroll 1
  for (int first = 0; first < kKeys; first += 64) {
    uint32_t key[4][4], query[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ldmatrix(key[i], &s.k[16 * band + lane % 16][first + 16 * i + lane / 16 * 8]);
      ldmatrix(query[i], &s.q[16 * band + lane % 16][first + 16 * i + lane / 16 * 8]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // the rows as the second factor too, which they are already
      mma_bf16(qq[0], query[i], query[i][0], query[i][2]);
      mma_bf16(qq[1], query[i], query[i][1], query[i][3]);
    }
#pragma unroll
    for (int pair = 0; pair < kBlocks; ++pair) {
      if (pair > band) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t b[4];
        ldmatrix(b, &s.k[16 * pair + lane / 16 * 8 + lane % 8][first + 16 * i + lane / 8 % 2 * 8]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mma_bf16(kk[2 * pair + half], key[i], b[2 * half], b[2 * half + 1]);
          mma_bf16(qk[2 * pair + half], query[i], b[2 * half], b[2 * half + 1]);
        }
      }
    }
  }
  // The squares of the lengths stand on the diagonals: of rows g and g + 8 on the lane of which t is g / 2.
  const int g = lane / 4, odd = g % 2;
  float squares[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int pair = 0; pair < kBlocks; ++pair)
      if (pair == band) squares[half] = odd ? kk[2 * pair + half][2 * half + 1] : kk[2 * pair + half][2 * half];
  if (lane % 4 == g / 2)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * band + 8 * half + g;
      s.to_k[row] = rsqrtf(squares[half] + 1e-6f);
      s.to_q[row] = rsqrtf((odd ? qq[half][2 * half + 1] : qq[half][2 * half]) + 1e-6f) * kOfQueries;
    }
}

}  // namespace fewbit::cuda::delta
