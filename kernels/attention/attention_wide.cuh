#pragma once
// Attention of many query rows on Hopper (compute capability 9.0a): heads of 64 or 128 values, bf16, nothing quantized.
// Warp-specialised as FlashAttention-3 is (Shah et al., 2024, section 3): a block has 128 query rows of one head, 64
// for each of two consumer warpgroups, and a producer warp, one thread of which copies queries, keys and values by
// boxes in the 128-byte swizzle. The block walks over the keys that any of its rows sees, 128 at a time. A consumer
// multiplies both times by wgmma: the scores of the next tile are under way while the weights of this one become
// operands, and the sums over its values while the next weights are made. Where one row's keys end does not show in the
// bits of another.
#include "kernels/attention/attention_source.cuh"
#include "kernels/device/exponential.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/tensor_map.cuh"

namespace fewbit::cuda::attention_wide {

template <int D>
struct Config {
  static constexpr int kDim = D;
  static constexpr int kConsumers = 2;  // warpgroups; one more has the producer warp
  static constexpr int kRows = 64 * kConsumers, kKeys = 128, kStages = 2;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kPlanes = D / 64;  // a plane: 64 values of every row, 128 bytes each
  static constexpr uint32_t kQueryPlane = kRows * 128, kPlane = kKeys * 128;
  static constexpr uint32_t kQueryBytes = kPlanes * kQueryPlane, kTileBytes = kPlanes * kPlane;
  static constexpr size_t kShared = 1024 + kQueryBytes + size_t{2} * kStages * kTileBytes;
  // Of 65,536 registers; ptxas gives each of the 384 threads 168 of them. The producer needs few, a consumer holds O,
  // the scores and the weights.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
};

struct Maps {
  CUtensorMap q, k, v;  // [sequences, heads, rows, values], the innermost last
};

#ifdef FEWBIT_SM90A

template <class S>
struct Barriers {
  uint64_t q_full, k_full[S::kStages], v_full[S::kStages], k_empty[S::kStages], v_empty[S::kStages];

  __device__ __forceinline__ void init() {
    constexpr int kReaders = kArrivingLanes * 4 * S::kConsumers;
    barrier_init(&q_full, 1);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(k_full + i, 1);
      barrier_init(v_full + i, 1);
      barrier_init(k_empty + i, kReaders);
      barrier_init(v_empty + i, kReaders);
    }
    barrier_publish();
  }
};

// What a block works on, and where its tiles lie in shared memory. Built by all lanes of every warp together.
template <class S>
struct Block {
  const AttentionSource<__nv_bfloat16>& a;
  uint8_t *q_sh, *k_sh, *v_sh;  // [planes, kRows, 64]; [kStages, planes, kKeys, 64] twice
  int head, kv_head, seq, row0;
  KeyRange range;
  int first, last;  // tiles of keys [first, last)

  __device__ __forceinline__ Block(const AttentionSource<__nv_bfloat16>& source, uint8_t* shared) : a(source) {
    q_sh = shared + (1024 - shared_address(shared) % 1024) % 1024;
    k_sh = q_sh + S::kQueryBytes;
    v_sh = k_sh + S::kStages * S::kTileBytes;
    head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads), seq = blockIdx.y;
    row0 = (gridDim.z - 1 - blockIdx.z) * S::kRows;  // the rows with most keys start first
    const int lane = threadIdx.x % 32;
    const KeyRange upper = key_range(position_of(lane), position_of(lane + 32), a.window, a.keys);
    const KeyRange lower = key_range(position_of(lane + 64), position_of(lane + 96), a.window, a.keys);
    range = joined(upper, lower, a.window);
    first = range.begin / S::kKeys, last = (range.end + S::kKeys - 1) / S::kKeys;
  }
  __device__ __forceinline__ int position_of(int row) const { return a.position_of(seq, row0 + row); }
  // The stage of a tile, and the parity of its round through the ring.
  __device__ __forceinline__ int stage_of(int tile) const { return (tile - first) % S::kStages; }
  __device__ __forceinline__ uint32_t parity_of(int tile) const { return (tile - first) / S::kStages % 2; }
};

// The producer: one thread copies the queries, then every tile of keys and of values as its stage becomes free.
template <class S>
__device__ __forceinline__ void produce(const Block<S>& block, const Maps& maps, Barriers<S>& barriers) {
  barrier_expect(&barriers.q_full, S::kQueryBytes);
  for (int p = 0; p < S::kPlanes; ++p)
    bulk_copy_box(block.q_sh + p * S::kQueryPlane, &maps.q, 64 * p, block.row0, block.head, block.seq,
                  &barriers.q_full);
  for (int tile = block.first; tile < block.last; ++tile) {
    const int stage = block.stage_of(tile);
    const uint32_t parity = block.parity_of(tile);
    const auto load = [&](uint8_t* to, const CUtensorMap* map, uint64_t* full, uint64_t* empty) {
      barrier_await(shared_address(empty + stage), parity ^ 1);
      barrier_expect(full + stage, S::kTileBytes);
      for (int p = 0; p < S::kPlanes; ++p)
        bulk_copy_box(to + stage * S::kTileBytes + p * S::kPlane, map, 64 * p, tile * S::kKeys, block.kv_head,
                      block.seq, full + stage);
    };
    load(block.k_sh, &maps.k, barriers.k_full, barriers.k_empty);
    load(block.v_sh, &maps.v, barriers.v_full, barriers.v_empty);
  }
}

// The online softmax of the two rows that a lane has a part of, over tiles of scores in the layout of wgmma.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // the maximum of the whole row; this lane's part of the sum

  // Scores become weights relative to the new maximum; sums from before are to be multiplied by `rescale`. `factor`
  // brings a score into the domain of the base-2 logarithm.
  __device__ __forceinline__ void weigh(float (&s)[64], float factor, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = top[r];
#pragma unroll
      for (int n = 0; n < 64; n += 4) top[r] = fmaxf(top[r], fmaxf(s[n + 2 * r], s[n + 2 * r + 1]));
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
      const float seen = top[r] == -INFINITY ? 0.f : top[r];  // a row that has seen no key yet
      const float reference = seen * factor;
      rescale[r] = exp2_fast((before - seen) * factor);  // exactly 1 where none of these keys is larger
      float added = 0;
#pragma unroll
      for (int n = 0; n < 64; n += 4)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[n + i] = exp2_fast(fmaf(s[n + i], factor, -reference));
          added += s[n + i];
        }
      sum[r] = fmaf(sum[r], rescale[r], added);
    }
  }
};

// The products of a consumer warpgroup. Scores are raw products until Softmax scales them.
template <class S>
struct Products {
  uint64_t q;  // the warpgroup's rows of it
  float o[S::kDim / 2] = {};
  uint32_t weights[S::kKeys / 16][4];

  // Begins s = Q K^T.
  __device__ __forceinline__ void scores(float (&s)[64], const uint8_t* k_sh) const {
    const uint64_t k = wgmma_matrix(k_sh);
#pragma unroll
    for (int i = 0; i < S::kDim / 16; ++i) {
      const int plane = i / 4, at = i % 4 * 2;
      wgmma(s, q + plane * (S::kQueryPlane >> 4) + at, k + plane * (S::kPlane >> 4) + at, i > 0);
    }
    wgmma_commit();
  }
  // Begins o += weights V.
  __device__ __forceinline__ void add_values(const uint8_t* v_sh) {
    const uint64_t v = wgmma_matrix_transposed(v_sh, S::kPlane);
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i) wgmma<true>(o, weights[i], v + 128 * i, true);
    wgmma_commit();
  }
  // The layout of a product's sums is that of an operand for the next.
  __device__ __forceinline__ void take_weights(const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < S::kKeys / 16; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) weights[i][e] = pack_bf16(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
  }
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < S::kDim / 2; ++n) o[n] *= factor[n / 2 % 2];
  }
};

__device__ __forceinline__ void mask_scores(float (&s)[64], int first_key, const int (&position)[2], int window) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int key = first_key + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, p = position[i / 2 % 2];
    if (key > p || (window > 0 && key <= p - window)) s[i] = -INFINITY;
  }
}

// A consumer warpgroup: 64 query rows, 16 a warp, of which a lane holds parts of two.
template <class S>
struct Consumer {
  const Block<S>& block;
  Barriers<S>& barriers;
  const AttentionSource<__nv_bfloat16>& a;
  int lane, warp_row;  // the warp's first row of the block
  int positions[2];    // of the lane's rows
  float factor;        // of scores after finish_scores(), to the base-2 logarithm
  Products<S> products;
  Softmax softmax;

  __device__ __forceinline__ Consumer(const Block<S>& of, Barriers<S>& of_block)
      : block(of), barriers(of_block), a(of.a) {
    lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    positions[0] = block.position_of(warp_row + lane / 4), positions[1] = block.position_of(warp_row + lane / 4 + 8);
    factor = a.softcap > 0 ? kLog2e : a.scale * kLog2e;
  }

  __device__ __forceinline__ void await_full(uint64_t* full, int tile) const {
    barrier_await(shared_address(full + block.stage_of(tile)), block.parity_of(tile));
  }
  __device__ __forceinline__ void release(uint64_t* empty, int tile) const {
    if (lane < kArrivingLanes) barrier_arrive(empty + block.stage_of(tile));
  }
  __device__ __forceinline__ uint8_t* keys_at(int tile) const {
    return block.k_sh + block.stage_of(tile) * S::kTileBytes;
  }
  __device__ __forceinline__ uint8_t* values_at(int tile) const {
    return block.v_sh + block.stage_of(tile) * S::kTileBytes;
  }

  // Caps the scores where there is a cap, and makes those of keys that a row does not see minus infinity.
  __device__ __forceinline__ void finish_scores(float (&s)[64], int tile) const {
    const int first_key = tile * S::kKeys;
    if (a.softcap > 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] = a.softcap * tanhf(s[i] * (a.scale / a.softcap));
    }
    const KeyRange& range = block.range;
    if (first_key + S::kKeys - 1 > range.low || (a.window > 0 && first_key <= range.high - a.window))
      mask_scores(s, first_key, positions, a.window);
  }

  // The walk over the tiles. In a step of the loop the scores of one tile and the sums over the values of the tile
  // before it are under way together.
  __device__ __forceinline__ void attend() {
    float s[64], rescale[2];
    const int first = block.first, last = block.last;
    products.q = wgmma_matrix(block.q_sh + threadIdx.x / 128 * 64 * 128);
    barrier_await(shared_address(&barriers.q_full), 0);
    await_full(barriers.k_full, first);
    wgmma_fence();
    products.scores(s, keys_at(first));
    wgmma_wait<0>();
    pin(s);
    release(barriers.k_empty, first);
    finish_scores(s, first);
    softmax.weigh(s, factor, rescale);
    products.take_weights(s);
    for (int tile = first + 1; tile < last; ++tile) {
      await_full(barriers.k_full, tile);
      await_full(barriers.v_full, tile - 1);
      wgmma_fence();
      products.scores(s, keys_at(tile));
      products.add_values(values_at(tile - 1));
      wgmma_wait<1>();
      pin(s);
      release(barriers.k_empty, tile);
      finish_scores(s, tile);
      softmax.weigh(s, factor, rescale);
      wgmma_wait<0>();
      pin(products.o);
      release(barriers.v_empty, tile - 1);
      products.rescale(rescale);
      products.take_weights(s);
    }
    add_last_values(last - 1);
  }

  __device__ __forceinline__ void add_last_values(int tile) {
    await_full(barriers.v_full, tile);
    if ((tile + 1) * S::kKeys > block.range.end) {
      // Past the last key the cache may hold anything, and zero times a NaN is a NaN.
      for (int i = threadIdx.x; i < S::kPlanes * S::kKeys * 8; i += 128 * S::kConsumers)
        if (tile * S::kKeys + i / 8 % S::kKeys >= block.range.end)
          reinterpret_cast<uint4*>(values_at(tile))[i] = {0, 0, 0, 0};
      publish_shared();
      named_barrier_sync(1, 128 * S::kConsumers);
    }
    wgmma_fence();
    products.add_values(values_at(tile));
    wgmma_wait<0>();
    pin(products.o);
  }

  // Stores the warp's rows. They go through the warp's own rows of q_sh, so that every lane stores 16 neighbouring
  // bytes.
  __device__ __forceinline__ void store() const {
    constexpr int D = S::kDim;
    uint8_t* own_rows = block.q_sh + warp_row * 128;
    const auto piece = [&](int row, int at) {  // 16 bytes of a row
      return own_rows + at / 8 * S::kQueryPlane + row * 128 + (at % 8 ^ row % 8) * 16;
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.sum[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = 1.f / sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<uint32_t*>(piece(lane / 4 + 8 * r, n) + lane % 4 * 4) =
            pack_bf16(products.o[4 * n + 2 * r] * inverse, products.o[4 * n + 2 * r + 1] * inverse);
    }
    __syncwarp();
#pragma unroll
    for (int round = 0; round < D / 16; ++round) {
      const int c = round * 32 + lane, row = c / (D / 8), at = c % (D / 8), i = block.row0 + warp_row + row;
      if (i < a.len)
        *reinterpret_cast<uint4*>(a.out + ((static_cast<int64_t>(block.seq) * a.len + i) * a.heads + block.head) * D +
                                  8 * at) = *reinterpret_cast<const uint4*>(piece(row, at));
    }
  }
};

#endif

// Grid: heads x sequences x tiles of 128 query rows.
template <int D>
__global__ void __launch_bounds__(Config<D>::kThreads, 1)
    attention_wide_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16> a, const __grid_constant__ Maps maps) {
#ifdef FEWBIT_SM90A
  using S = Config<D>;
  extern __shared__ uint8_t shared[];
  __shared__ Barriers<S> barriers;
  if (threadIdx.x == 0) barriers.init();
  allow_successor();
  await_predecessor();
  const Block<S> block(a, shared);
  __syncthreads();
  if (threadIdx.x / 128 == S::kConsumers) {
    give_registers<S::kProducerRegisters>();
    if (threadIdx.x / 32 % 4 > 0 || !elected()) return;
    return produce(block, maps, barriers);
  }
  take_registers<S::kConsumerRegisters>();
  Consumer<S> consumer(block, barriers);
  consumer.attend();
  consumer.store();
#endif
}

// Where choose_kernel() says Kernel::attention_wide.
template <int D>
void launch(CudaState& s, const AttentionSource<__nv_bfloat16>& a) {
  using S = Config<D>;
  const auto map = [&](const __nv_bfloat16* data, int rows, int heads, int64_t row, int64_t head, int64_t seq,
                       int box) {
    const auto bytes = [](int64_t values) { return static_cast<cuuint64_t>(2 * values); };
    return map_of<4>(
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data,
        {D, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(a.seqs)},
        {bytes(row), bytes(head), bytes(seq)}, {64, static_cast<cuuint32_t>(box), 1, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  const int64_t width = static_cast<int64_t>(a.heads) * D;
  const Maps maps{.q = map(a.q, a.len, a.heads, width, D, a.len * width, S::kRows),
                  .k = map(a.k, a.keys, a.kv_heads, a.kv_token, a.kv_head, a.kv_seq, S::kKeys),
                  .v = map(a.v, a.keys, a.kv_heads, a.kv_token, a.kv_head, a.kv_seq, S::kKeys)};
  auto* kernel = attention_wide_kernel<D>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const dim3 grid(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.seqs),
                  static_cast<unsigned>((a.len + S::kRows - 1) / S::kRows));
  launch_overlapping(s, kernel, grid, dim3(S::kThreads), S::kShared, a, maps);
}

}  // namespace fewbit::cuda::attention_wide
