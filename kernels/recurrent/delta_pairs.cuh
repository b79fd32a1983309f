#pragma once
// The half of a chunk that does not depend on the state, and so is made for all chunks at once. With c[t] the sum of
// the logarithms of the decays of the chunk up to and with token t (delta_chunk_cpu.cpp has the equations),
//   A[t, s] = beta_t exp(c[t] - c[s]) k_t . k_s  (s < t),   P[t, s] = exp(c[t] - c[s]) q_t . k_s  (s <= t)
// and what the tokens write is U = (I + A)^-1 diag(beta) (V - diag(exp(c)) K S). Differences of c are never positive
// below the diagonal, so that nothing overflows. Products are of the raw bf16 rows, which are exact; their lengths come
// in as factors behind them. The inverse is blocked by 16: substitution within a block, then products of blocks in f16,
// which is enough: T[t, s] is k_t . M k_s with M a product of decays and of I - beta k k^T, none of which makes
// anything longer, so that neither A nor T has a value beyond 1, and T is rounded to bf16 in the end.
#include "kernels/device/exponential.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda::delta {

using bf16 = __nv_bfloat16;
constexpr int kTokens = 64;  // of a chunk
constexpr int kKeys = 128;   // features of a key
constexpr int kBlock = 16, kBlocks = kTokens / kBlock;
constexpr int kHeads = 4;  // value heads that a block makes at most
constexpr int kThreads = 128;
constexpr int kKeyRow = kKeys + 8, kTokenRow = kTokens + 8;  // rows in shared memory: eight of them meet all banks

// What walk_kernel needs of a chunk of a value head. Blocks of 16 x 16 above the diagonal (of pairs) are not written.
struct alignas(16) Chunk {
  bf16 solve[kTokens][kTokens];  // ((I + A)^-1 diag(beta)) transposed: [s][t]
  bf16 pairs[kTokens][kTokens];  // P [t][s]
  float of_keys[kTokens];        // exp(c[t]) / |k_t|
  float of_queries[kTokens];     // exp(c[t]) / |q_t| / sqrt(kKeys)
  float to_state[kTokens];       // exp(c[last] - c[s]) / |k_s|
  float keep[4];                 // exp(c[last]), and three that fill 16 bytes
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
  bool from_zero;  // the state is not read
};

// The 64 rows of a matrix of kColumns columns at `from` into shared memory, by threads 0 .. kThreads - 1; zeros from
// row `inside` on.
template <int kColumns, int kRow>
__device__ __forceinline__ void copy_rows(int thread, bf16 (*to)[kRow], const bf16* from, int64_t width, int inside) {
  constexpr int kPieces = kColumns / 8;
#pragma unroll
  for (int i = thread; i < kTokens * kPieces; i += kThreads) {
    const int row = i / kPieces, column = i % kPieces * 8;
    cp_async16(&to[row][column], from + (row < inside ? row : 0) * width + column, row < inside);
  }
}

struct PairsShared {
  union {
    struct {
      bf16 k[kTokens][kKeyRow], q[kTokens][kKeyRow];
    };
    struct {                                        // of one head and the next in turn
      __half below[kTokens][kTokenRow];             // A below its blocks on the diagonal
      float diagonal[kBlocks][kBlock][kBlock + 4];  // these blocks, then their inverses
    } of_head[2];
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

__device__ __forceinline__ float squares(const bf16* row, int part) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kKeys / 32; ++i) {
    const Vec<bf16, 8> v = load_vec<bf16, 8>(row + (4 * i + part) * 8);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(to_f32(v[j]), to_f32(v[j]), sum);
  }
  return warp_reduce(sum, Sum{}, 4);
}

// The factors that bring the rows of this warp to their lengths.
__device__ __forceinline__ void lengths(PairsShared& s) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * warp + 8 * half + lane / 4;
    const float kk = squares(s.k[row], part), qq = squares(s.q[row], part);
    if (part == 0) {
      s.to_k[row] = 1.f / sqrtf(kk + 1e-6f);
      s.to_q[row] = 1.f / (sqrtf(qq + 1e-6f) * sqrtf(static_cast<float>(kKeys)));
    }
  }
}

// K K^T and Q K^T of the raw rows: rows 16 warp .. 16 warp + 15, tiles of 8 columns up to the diagonal.
__device__ __forceinline__ void raw_products(const PairsShared& s, float (&kk)[8][4], float (&qk)[8][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 2
  for (int k = 0; k < kKeys; k += 16) {
    uint32_t key[4], query[4];
    ldmatrix(key, &s.k[16 * warp + lane % 16][k + lane / 16 * 8]);
    ldmatrix(query, &s.q[16 * warp + lane % 16][k + lane / 16 * 8]);
#pragma unroll
    for (int pair = 0; pair < kBlocks; ++pair) {
      if (pair > warp) continue;
      uint32_t b[4];
      ldmatrix(b, &s.k[16 * pair + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma_bf16(kk[2 * pair + i], key, b[2 * i], b[2 * i + 1]);
        mma_bf16(qk[2 * pair + i], query, b[2 * i], b[2 * i + 1]);
      }
    }
  }
}

}  // namespace fewbit::cuda::delta
