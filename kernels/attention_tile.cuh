#pragma once
// What the attention kernels share: where the operands lie, and one warp's step of attention with an online
// softmax: 16 query rows against kKeys keys that stand in shared memory. Scores live in the base-2
// logarithm's domain.
#include "kernels/mma.cuh"

namespace fewbit::cuda {

// Query row i of sequence s stands at position positions[s * len + i], or i where `positions` is null, and
// sees keys [0, position], cut by the window. Key j of kv head h lies at k + s * kv_seq + h * kv_head + j *
// kv_token.
template <class T>
struct AttentionSource {
  const T* q;  // [seqs * len, heads * d]
  const T* k;
  const T* v;
  const int32_t* positions;  // [seqs * len] or null
  T* out;                    // like q
  int seqs, len, heads, kv_heads, d;
  int64_t kv_seq, kv_head, kv_token;  // strides in values
  int keys;                           // keys a sequence has room for
  int window;                         // 0: none
  float scale, softcap;
};

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// D: head_dim rounded up to an instantiation; columns past the true one hold zeros. Rows of shared memory are
// padded by 16 bytes, so that the eight rows of an ldmatrix fall into different banks.
template <int D, int kKeys>
struct WarpAttention {
  static_assert(D % 16 == 0 && kKeys % 16 == 0);
  static constexpr int kStride = D + 8;     // values from row to row in shared memory
  static constexpr bool kKeepQ = D <= 128;  // else Q is read again for every tile: registers
  static constexpr int kQ = kKeepQ ? D / 16 : 1;

  float o[D / 8][4];  // the mma C layout: rows g and g + 8
  float m[2], l[2];   // running maximum (of the whole row) and sum (this lane's part of it)
  uint32_t qf[kQ][4];
  const __nv_bfloat16* q_sh;  // this warp's 16 rows

  __device__ __forceinline__ void init(const __nv_bfloat16* q_rows) {
    q_sh = q_rows;
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0;
    if constexpr (kKeepQ) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) load_q(qf[k], k);
    }
  }

  __device__ __forceinline__ void load_q(uint32_t (&f)[4], int k) const {
    const int lane = threadIdx.x % 32;
    ldmatrix(f, q_sh + (lane % 16) * kStride + k * 16 + lane / 16 * 8);
  }

  // s = Q K^T for the kKeys rows at k_sh.
  __device__ __forceinline__ void scores(float (&s)[kKeys / 8][4], const __nv_bfloat16* k_sh) {
    const int lane = threadIdx.x % 32;
    const __nv_bfloat16* row = k_sh + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      if constexpr (!kKeepQ) load_q(qf[0], k);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        ldmatrix(b, row + n * 16 * kStride + k * 16);
        mma_bf16(s[2 * n], qf[kKeepQ ? k : 0], b[0], b[1]);
        mma_bf16(s[2 * n + 1], qf[kKeepQ ? k : 0], b[2], b[3]);
      }
    }
  }

  // Scales (and caps) the scores; keys that a row does not see become minus infinity where `masked`.
  __device__ __forceinline__ void finish_scores(float (&s)[kKeys / 8][4], float scale, float softcap,
                                                bool masked, int first_key, const int (&position)[2],
                                                int window) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float z = s[n][i] * scale;
        s[n][i] = softcap > 0 ? softcap * kLog2e * tanhf(z / softcap) : z * kLog2e;
        const int key = first_key + n * 8 + 2 * t + i % 2, p = position[i / 2];
        if (masked && (key > p || (window > 0 && key <= p - window))) s[n][i] = -INFINITY;
      }
    }
  }

  // Turns s into weights about the new maximum and scales what was summed before.
  __device__ __forceinline__ void softmax(float (&s)[kKeys / 8][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = m[r];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float about = top == -INFINITY ? 0.f : top;  // a row that has seen no key yet
      const float keep = exp2_fast(m[r] - about);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[n][i] = exp2_fast(s[n][i] - about);
          sum += s[n][i];
        }
      }
      m[r] = top;
      l[r] = l[r] * keep + sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n][2 * r] *= keep;
        o[n][2 * r + 1] *= keep;
      }
    }
  }

  // o += s V for the kKeys rows at v_sh. The C layout of s is the A layout of the next product.
  __device__ __forceinline__ void add_values(const float (&s)[kKeys / 8][4], const __nv_bfloat16* v_sh) {
    const int lane = threadIdx.x % 32;
    const __nv_bfloat16* row = v_sh + (lane % 16) * kStride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t a[4] = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
                             pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]),
                             pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t b[4];
        ldmatrix_transposed(b, row + k * 16 * kStride + n * 16);
        mma_bf16(o[2 * n], a, b[0], b[1]);
        mma_bf16(o[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // The whole row's sum on every lane that holds part of the row.
  __device__ __forceinline__ void finish_sums() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
    }
  }
};

// Which keys a set of rows sees together: the smallest and the largest position among them.
struct KeyRange {
  int low, high;   // positions
  int begin, end;  // keys [begin, end)
};
// `position` of this lane's rows of the set, or -1; the same result on every lane.
__device__ __forceinline__ KeyRange key_range(int position_a, int position_b, int window, int keys) {
  const auto low_of = [](int p) { return p < 0 ? 0x7fffffff : p; };
  int low = min(low_of(position_a), low_of(position_b)), high = max(position_a, position_b);
  for (int lane = 16; lane > 0; lane /= 2) {
    low = min(low, __shfl_xor_sync(0xffffffffu, low, lane));
    high = max(high, __shfl_xor_sync(0xffffffffu, high, lane));
  }
  return {low, high, window > 0 ? max(0, low - window + 1) : 0, min(high + 1, keys)};
}

// Copies kRows rows of d values (zeros up to D, and for rows that `source` gives no address) into shared
// memory. source(row) returns a pointer or null; `any` is an address that is always mapped.
template <int D, int kRows, int kThreads, class F>
__device__ __forceinline__ void copy_rows(__nv_bfloat16* to, int thread, int d, const __nv_bfloat16* any,
                                          F source) {
  constexpr int kChunks = D / 8;
#pragma unroll
  for (int base = 0; base < kRows * kChunks; base += kThreads) {
    const int c = base + thread;
    if (kRows * kChunks % kThreads != 0 && c >= kRows * kChunks) break;
    const int row = c / kChunks, col = c % kChunks * 8;
    const __nv_bfloat16* from = source(row);
    const bool valid = from != nullptr && col < d;
    cp_async16(to + row * (D + 8) + col, valid ? from + col : any, valid);
  }
}

}  // namespace fewbit::cuda
