#pragma once
// Attention of many query rows on Hopper: heads of 64 or 128 values, nothing quantized. A block has 128 query
// rows of one head, 64 a warpgroup, and walks over the keys that any of them sees, 128 at a time. One thread
// copies queries, keys and values by boxes in the 128-byte swizzle. A warpgroup multiplies both times by
// wgmma: the scores of the next keys are under way while the weights of these become operands, and the sums
// over the values while the next weights are made. Where a row's keys end does not show in the bits of
// another row.
#include "kernels/attention/attention_tile.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/tensor_map.cuh"

namespace fewbit::cuda {

template <int D>
struct AttentionWide {
  static constexpr int kGroups = 2, kRows = 64 * kGroups, kKeys = 128, kStages = 2;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kPlanes = D / 64;  // 64 values of every row, 128 bytes each
  static constexpr uint32_t kQueryPlane = kRows * 128, kPlane = kKeys * 128;
  static constexpr uint32_t kQueryBytes = kPlanes * kQueryPlane, kTileBytes = kPlanes * kPlane;
  static constexpr size_t kShared = 1024 + kQueryBytes + size_t{2} * kStages * kTileBytes;
};

struct AttentionMaps {
  CUtensorMap q, k, v;  // [sequences, heads, rows, values], the innermost last
};

#ifdef FEWBIT_SM90A

// The softmax of the two rows that a lane has a part of, over tiles of scores in the layout of wgmma.
struct WideSoftmax {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // of the whole row; of this lane's part

  // Scores become weights about the new maximum; `keep` is what earlier weights are worth then.
  __device__ __forceinline__ void weigh(float (&s)[64], float by, float (&keep)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = top[r];
#pragma unroll
      for (int n = 0; n < 64; n += 4) top[r] = fmaxf(top[r], fmaxf(s[n + 2 * r], s[n + 2 * r + 1]));
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
      const float seen = top[r] == -INFINITY ? 0.f : top[r],
                  about = seen * by;              // a row that has seen no key yet
      keep[r] = exp2_fast((before - seen) * by);  // exactly 1 where none of these keys is larger
      float mine = 0;
#pragma unroll
      for (int n = 0; n < 64; n += 4)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[n + i] = exp2_fast(fmaf(s[n + i], by, -about));
          mine += s[n + i];
        }
      sum[r] = fmaf(sum[r], keep[r], mine);
    }
  }
};

// The rows of a warpgroup. Scores are raw products until WideSoftmax scales them.
template <int D>
struct WideRows {
  using S = AttentionWide<D>;
  uint64_t q;  // the warpgroup's rows of it
  float o[D / 2] = {};
  uint32_t weights[S::kKeys / 16][4];

  __device__ __forceinline__ void scores(float (&s)[64], const uint8_t* k_sh) const {
    const uint64_t k = wgmma_matrix(k_sh);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const int plane = i / 4, at = i % 4 * 2;
      wgmma(s, q + plane * (S::kQueryPlane >> 4) + at, k + plane * (S::kPlane >> 4) + at, i > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void add_values(const uint8_t* v_sh) {
    const uint64_t v = wgmma_matrix_transposed(v_sh, S::kPlane);
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) wgmma<true>(o, weights[i], v + 128 * i, true);
    wgmma_commit();
  }
  // The layout of a product's sums is that of an operand for the next.
  __device__ __forceinline__ void take(const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[i][e] = pack_bf16(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
  }
  __device__ __forceinline__ void keep(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < D / 2; ++n) o[n] *= factor[n / 2 % 2];
  }
};

__device__ __forceinline__ void mask_scores(float (&s)[64], int first_key, const int (&position)[2], int window) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int key = first_key + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, p = position[i / 2 % 2];
    if (key > p || (window > 0 && key <= p - window)) s[i] = -INFINITY;
  }
}

#endif

template <int D>
__global__ void __launch_bounds__(AttentionWide<D>::kThreads, 1)
    attention_wide_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16> a,
                          const __grid_constant__ AttentionMaps maps) {
#ifdef FEWBIT_SM90A
  using S = AttentionWide<D>;
  extern __shared__ uint8_t shared[];
  __shared__ uint64_t q_full, k_full[S::kStages], v_full[S::kStages], k_empty[S::kStages], v_empty[S::kStages];
  uint8_t* q_sh = shared + (1024 - shared_address(shared) % 1024) % 1024;  // [planes, kRows, 64]
  uint8_t* k_sh = q_sh + S::kQueryBytes;                                   // [kStages, planes, kKeys, 64]
  uint8_t* v_sh = k_sh + S::kStages * S::kTileBytes;                       // the same
  if (threadIdx.x == 0) {
    constexpr int kReaders = kArrivingLanes * 4 * S::kGroups;
    barrier_init(&q_full, 1);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(k_full + i, 1);
      barrier_init(v_full + i, 1);
      barrier_init(k_empty + i, kReaders);
      barrier_init(v_empty + i, kReaders);
    }
    barrier_publish();
  }
  allow_successor();
  await_predecessor();
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  const int head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads), seq = blockIdx.y;
  const int row0 = (gridDim.z - 1 - blockIdx.z) * S::kRows;  // the rows with most keys start first
  const auto position_of = [&](int row) {                    // of a row of this block; -1 past the last one
    const int i = row0 + row;
    return i >= a.len ? -1 : a.positions ? a.positions[static_cast<int64_t>(seq) * a.len + i] : i;
  };
  const KeyRange upper = key_range(position_of(lane), position_of(lane + 32), a.window, a.keys);
  const KeyRange lower = key_range(position_of(lane + 64), position_of(lane + 96), a.window, a.keys);
  const KeyRange range = joined(upper, lower, a.window);
  const int first = range.begin / S::kKeys, last = (range.end + S::kKeys - 1) / S::kKeys;
  __syncthreads();

  if (group == S::kGroups) {
    give_registers<24>();
    if (warp > 0 || !elected()) return;
    barrier_expect(&q_full, S::kQueryBytes);
    for (int p = 0; p < S::kPlanes; ++p)
      bulk_copy_box(q_sh + p * S::kQueryPlane, &maps.q, 64 * p, row0, head, seq, &q_full);
    for (int tile = first; tile < last; ++tile) {
      const int stage = (tile - first) % S::kStages;
      const uint32_t parity = (tile - first) / S::kStages % 2;
      const auto fetch = [&](uint8_t* to, const CUtensorMap* map, uint64_t* full, uint64_t* empty) {
        barrier_await(shared_address(empty + stage), parity ^ 1);
        barrier_expect(full + stage, S::kTileBytes);
        for (int p = 0; p < S::kPlanes; ++p)
          bulk_copy_box(to + stage * S::kTileBytes + p * S::kPlane, map, 64 * p, tile * S::kKeys, kv_head, seq,
                        full + stage);
      };
      fetch(k_sh, &maps.k, k_full, k_empty);
      fetch(v_sh, &maps.v, v_full, v_empty);
    }
    return;
  }

  take_registers<240>();
  const int my_positions[2] = {position_of(group * 64 + warp * 16 + lane / 4),
                               position_of(group * 64 + warp * 16 + lane / 4 + 8)};
  const auto await_full = [&](uint64_t* full, int tile) {
    barrier_await(shared_address(full + (tile - first) % S::kStages), (tile - first) / S::kStages % 2);
  };
  const auto leave = [&](uint64_t* empty, int tile) {
    if (lane < kArrivingLanes) barrier_arrive(empty + (tile - first) % S::kStages);
  };
  const auto tile_of = [&](uint8_t* tiles, int tile) { return tiles + (tile - first) % S::kStages * S::kTileBytes; };
  const float by = a.softcap > 0 ? kLog2e : a.scale * kLog2e;
  const auto finish_scores = [&](float(&s)[64], int tile) {
    const int first_key = tile * S::kKeys;
    if (a.softcap > 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] = a.softcap * tanhf(s[i] * (a.scale / a.softcap));
    }
    if (first_key + S::kKeys - 1 > range.low || (a.window > 0 && first_key <= range.high - a.window))
      mask_scores(s, first_key, my_positions, a.window);
  };

  WideRows<D> rows;
  WideSoftmax softmax;
  float s[64], keep[2];
  rows.q = wgmma_matrix(q_sh + group * 64 * 128);
  barrier_await(shared_address(&q_full), 0);
  await_full(k_full, first);
  wgmma_fence();
  rows.scores(s, tile_of(k_sh, first));
  wgmma_wait<0>();
  pin(s);
  leave(k_empty, first);
  finish_scores(s, first);
  softmax.weigh(s, by, keep);
  rows.take(s);
  for (int tile = first + 1; tile < last; ++tile) {
    await_full(k_full, tile);
    await_full(v_full, tile - 1);
    wgmma_fence();
    rows.scores(s, tile_of(k_sh, tile));
    rows.add_values(tile_of(v_sh, tile - 1));
    wgmma_wait<1>();
    pin(s);
    leave(k_empty, tile);
    finish_scores(s, tile);
    softmax.weigh(s, by, keep);
    wgmma_wait<0>();
    pin(rows.o);
    leave(v_empty, tile - 1);
    rows.keep(keep);
    rows.take(s);
  }
  await_full(v_full, last - 1);
  if (last * S::kKeys > range.end) {
    // Behind the last key the cache may hold anything, and nothing times a NaN is one.
    for (int i = threadIdx.x; i < S::kPlanes * S::kKeys * 8; i += 128 * S::kGroups)
      if ((last - 1) * S::kKeys + i / 8 % S::kKeys >= range.end)
        reinterpret_cast<uint4*>(tile_of(v_sh, last - 1))[i] = {0, 0, 0, 0};
    publish_shared();
    named_barrier_sync(1, 128 * S::kGroups);
  }
  wgmma_fence();
  rows.add_values(tile_of(v_sh, last - 1));
  wgmma_wait<0>();
  pin(rows.o);

  // Through the warp's own rows of q_sh, so that the rows leave in 16-byte pieces.
  uint8_t* mine = q_sh + (group * 64 + warp * 16) * 128;
  const auto piece = [&](int row, int at) {  // 16 bytes of a row
    return mine + at / 8 * S::kQueryPlane + row * 128 + (at % 8 ^ row % 8) * 16;
  };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float factor = 1.f / sum;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<uint32_t*>(piece(lane / 4 + 8 * r, n) + lane % 4 * 4) =
          pack_bf16(rows.o[4 * n + 2 * r] * factor, rows.o[4 * n + 2 * r + 1] * factor);
  }
  __syncwarp();
#pragma unroll
  for (int c = lane; c < 16 * (D / 8); c += 32) {
    const int row = c / (D / 8), at = c % (D / 8), i = row0 + group * 64 + warp * 16 + row;
    if (i < a.len)
      *reinterpret_cast<uint4*>(a.out + ((static_cast<int64_t>(seq) * a.len + i) * a.heads + head) * D + 8 * at) =
          *reinterpret_cast<const uint4*>(piece(row, at));
  }
#endif
}

// Whether the kernel takes this: `a` passed fits_tensor_kernels().
inline bool attention_wide_takes(const CudaState& s, const AttentionSource<__nv_bfloat16>& a) {
  // Fewer rows would leave a warpgroup idle.
  return s.sm90() && (a.d == 64 || a.d == 128) && a.len > 64 && a.scale > 0 && a.kv_token % 8 == 0 &&
         a.kv_head % 8 == 0 && a.kv_seq % 8 == 0 && a.seqs < 65536 && tensor_map_encoder();
}

template <int D>
void launch_attention_wide(CudaState& s, const AttentionSource<__nv_bfloat16>& a) {
  using S = AttentionWide<D>;
  const auto map = [&](const __nv_bfloat16* data, int rows, int heads, int64_t row, int64_t head, int64_t seq,
                       int box) {
    const auto bytes = [](int64_t values) { return static_cast<cuuint64_t>(2 * values); };
    return map_of<4>(
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data,
        {D, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(a.seqs)},
        {bytes(row), bytes(head), bytes(seq)}, {64, static_cast<cuuint32_t>(box), 1, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  const int64_t width = static_cast<int64_t>(a.heads) * D;
  const AttentionMaps maps{.q = map(a.q, a.len, a.heads, width, D, a.len * width, S::kRows),
                           .k = map(a.k, a.keys, a.kv_heads, a.kv_token, a.kv_head, a.kv_seq, S::kKeys),
                           .v = map(a.v, a.keys, a.kv_heads, a.kv_token, a.kv_head, a.kv_seq, S::kKeys)};
  auto* kernel = attention_wide_kernel<D>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const dim3 grid(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.seqs),
                  static_cast<unsigned>((a.len + S::kRows - 1) / S::kRows));
  launch_overlapping(s, kernel, grid, dim3(S::kThreads), S::kShared, a, maps);
}

}  // namespace fewbit::cuda
