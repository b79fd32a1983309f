// y = x W^T on Marlin words as they lie. Up to 64 rows of x the weights are streamed once and never leave the
// chip as anything but words: a block has 128 outputs and a run of k, its eight warps being two runs of 64
// outputs times four runs of k. A warp pulls its words through a ring in shared memory by asynchronous
// copies, several KiB ahead, without a barrier, because a warp reads what it has copied itself; it turns them
// into bf16 fragments and multiplies them on the tensor cores as the 16-row operand, with 8 or 16 activations
// as columns. Sums of a group are f32 and meet their scale in f32. Warps are added in shared memory, blocks
// of one run of outputs through f32 partials in scratch memory, by the last of them to arrive, always in the
// order of k. Bytes: the words and scales once, x once a block (mostly from L2). Above 64 rows the weight is
// dequantized into scratch memory, a slab of outputs at a time, and multiplied by cuBLAS.
#include <algorithm>

#include "kernels/dense.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/marlin_gemm.h"
#include "kernels/marlin_tile.cuh"
#include "kernels/vec.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kStreamedRows = 64;                    // more rows of x go to cuBLAS
constexpr size_t kDenseScratch = size_t{256} << 20;  // bytes of dequantized weight at a time
constexpr int kWarpsN = 2, kWarpsK = 4, kThreads = 32 * kWarpsN * kWarpsK;
constexpr int kBlockOutputs = kWarpsN * marlin::kTileN;
constexpr int kBlocksPerSm = 2;
constexpr int kStageTiles = 2;  // k-tiles of a stage: 32 values, the smallest group
constexpr size_t kActivationBytes = size_t{36}
                                    << 10;  // of x in a block's shared memory: two blocks fit an SM

struct MarlinJob {
  MarlinSource w;
  const __nv_bfloat16* x;     // [rows, in]
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out], f32 or bf16
  bool y_f32;
  int rows;
  int splits;          // blocks along k
  float* partials;     // [slices, splits, kTokens, out]; unused where splits == 1
  uint32_t* counters;  // [n_blocks * slices], zero between launches
};

// kTokens: columns of the tile, 8 or 16. kStages: depth of a warp's ring.
template <int kBits, int kTokens>
struct MarlinShape {
  static constexpr int kStages = kBits == 4 ? 8 : 4;
  static constexpr int kTileBytes = marlin::tile_words(kBits) * 4;
  static constexpr int kScaleBytes = 64 * 2, kZeroBytes = 64 * kBits / 8;
  static constexpr int kStageBytes = kStageTiles * kTileBytes + kScaleBytes + kZeroBytes;
  static constexpr size_t kRingBytes = static_cast<size_t>(kWarpsN) * kWarpsK * kStages * kStageBytes;
  static constexpr int kSumStride = marlin::kTileN + 4;  // floats from token to token, for the banks
  static constexpr size_t kSumBytes = static_cast<size_t>(kWarpsN) * kWarpsK * kTokens * kSumStride * 4;
  static_assert(kStageBytes % 16 == 0 && kSumBytes <= kRingBytes, "the sums take the ring's place");
};

// Words (of 4 bytes) from token to token of x in shared memory: 8 a k-tile, an odd number of k-tiles, for the
// banks.
__host__ __device__ constexpr int activation_stride(int stages) { return 8 * (kStageTiles * stages | 1); }

__device__ __forceinline__ int share(int total, int part,
                                     int parts) {  // the first of `part`'s share of `total`
  return static_cast<int>(static_cast<int64_t>(total) * part / parts);
}

// A warp's ring: stage `st` of k (32 values) of one run of 64 outputs.
template <int kBits, int kTokens, bool kZeros>
struct Ring {
  using S = MarlinShape<kBits, kTokens>;
  const MarlinSource& w;
  uint8_t* base;  // [kStages, kStageBytes]
  int chunk;      // which run of 64 outputs
  int first;      // first stage of this warp
  int lane;

  __device__ __forceinline__ bool starts_group(int st) const {
    return w.grouped() && (st == first || kStageTiles * st % w.group_tiles == 0);
  }
  __device__ __forceinline__ uint8_t* slot(int st) const {
    return base + (st - first) % S::kStages * S::kStageBytes;
  }

  __device__ __forceinline__ void fetch(int st) const {
    constexpr int kUnits = S::kTileBytes / 16;
    uint8_t* to = slot(st);
    const int64_t row_words = static_cast<int64_t>(w.out) * kBits / 2;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      const int tile = kStageTiles * st + i;
      const bool valid = tile < w.k_tiles();  // beyond: any words, they meet zeros of x
      const uint32_t* from = w.b + (valid ? tile : 0) * row_words + chunk * marlin::tile_words(kBits);
#pragma unroll
      for (int u = lane; u < kUnits; u += 32)
        cp_async16(to + i * S::kTileBytes + 16 * marlin::unit_position(u, kBits), from + 4 * u, valid);
    }
    if (!starts_group(st)) return;
    const int64_t group = kStageTiles * st / w.group_tiles;
    to += kStageTiles * S::kTileBytes;
    if (lane < S::kScaleBytes / 16)
      cp_async16(to + 16 * lane, w.s + group * w.out + chunk * marlin::kTileN + 8 * lane);
    if (kZeros && lane < S::kZeroBytes / 16)
      cp_async16(to + S::kScaleBytes + 16 * lane,
                 w.z + group * (w.out * kBits / 32) + chunk * (S::kZeroBytes / 4) + 4 * lane);
  }

  // This lane's words of k-tile i of a stage.
  __device__ __forceinline__ void words(uint32_t (&out)[kBits], int st, int i) const {
    const uint8_t* tile = slot(st) + i * S::kTileBytes;
#pragma unroll
    for (int p = 0; p < kBits / 4; ++p) {
      const uint4 unit =
          *reinterpret_cast<const uint4*>(tile + 16 * marlin::unit_position(lane * (kBits / 4) + p, kBits));
      out[4 * p] = unit.x;
      out[4 * p + 1] = unit.y;
      out[4 * p + 2] = unit.z;
      out[4 * p + 3] = unit.w;
    }
  }
  __device__ __forceinline__ void group(__half (&scales)[8], LaneZeros<kBits>& zeros, int st) const {
    const uint8_t* from = slot(st) + kStageTiles * S::kTileBytes;
    *reinterpret_cast<uint4*>(scales) =
        *reinterpret_cast<const uint4*>(from + 2 * marlin::fragment_scale(lane, 0, true));
    if (kZeros) zeros.set_words(reinterpret_cast<const uint32_t*>(from + S::kScaleBytes), lane);
  }
};

// x of tokens [row0, row0 + tokens), stages [first, last), zeros past the end, with the pairs of a k-tile
// reordered.
__device__ __forceinline__ void stage_activations(uint32_t* x_sh, const MarlinJob& job, int row0, int tokens,
                                                  int first, int last) {
  const int stride = activation_stride(last - first), halves = 2 * kStageTiles * (last - first);
  for (int e = threadIdx.x; e < tokens * halves; e += kThreads) {
    const int token = e / halves, half = e % halves, k = first * kStageTiles * marlin::kTileK + 8 * half;
    uint4 v{0, 0, 0, 0};
    if (k < job.w.in)
      v = *reinterpret_cast<const uint4*>(job.x + static_cast<int64_t>(row0 + token) * job.w.in + k);
    uint32_t* to = x_sh + token * stride + half / 2 * 8;
    const int pair = half % 2 * 4;
    to[marlin::pair_slot(pair)] = v.x;
    to[marlin::pair_slot(pair + 1)] = v.y;
    to[marlin::pair_slot(pair + 2)] = v.z;
    to[marlin::pair_slot(pair + 3)] = v.w;
  }
}

// sum += scale * part; part = 0
template <int kColumns>
__device__ __forceinline__ void close_group(float (&sum)[marlin::kSubTiles][kColumns][4],
                                            float (&part)[marlin::kSubTiles][kColumns][4],
                                            const __half (&scales)[8]) {
#pragma unroll
  for (int j = 0; j < marlin::kSubTiles; ++j)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[j][c][i] = fmaf(__half2float(scales[2 * j + i / 2]), part[j][c][i], sum[j][c][i]);
        part[j][c][i] = 0;
      }
}

__device__ __forceinline__ void store_output(const MarlinJob& job, int row, int col, float value) {
  if (job.bias) value += __bfloat162float(job.bias[col]);
  const int64_t at = static_cast<int64_t>(row) * job.w.out + col;
  if (job.y_f32)
    static_cast<float*>(job.y)[at] = value;
  else
    static_cast<__nv_bfloat16*>(job.y)[at] = __float2bfloat16_rn(value);
}

// Adds the block's four runs of k, then the blocks' (the last to arrive does), in the order of k.
template <int kTokens, int kSumStride>
__device__ __forceinline__ void reduce_and_store(const MarlinJob& job, const float* sums, int slice,
                                                 int n_block, int split) {
  const int row0 = slice * kTokens, tokens = min(kTokens, job.rows - row0);
  const int col0 = n_block * kBlockOutputs, cols = min(kBlockOutputs, job.w.out - col0);
  const auto block_sum = [&](int token, int col) {
    float v = 0;
#pragma unroll
    for (int k = 0; k < kWarpsK; ++k)
      v += sums[((k * kWarpsN + col / marlin::kTileN) * kTokens + token) * kSumStride + col % marlin::kTileN];
    return v;
  };
  const int col = threadIdx.x % kBlockOutputs;
  constexpr int kStep = kThreads / kBlockOutputs;  // tokens at a time
  if (job.splits == 1) {
    for (int t = threadIdx.x / kBlockOutputs; t < tokens; t += kStep)
      if (col < cols) store_output(job, row0 + t, col0 + col, block_sum(t, col));
    return;
  }
  const int64_t split_stride = static_cast<int64_t>(kTokens) * job.w.out;
  float* partials = job.partials + slice * job.splits * split_stride + col0 + col;
  for (int t = threadIdx.x / kBlockOutputs; t < tokens; t += kStep)
    if (col < cols)
      __stcg(partials + split * split_stride + static_cast<int64_t>(t) * job.w.out, block_sum(t, col));
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* counter = job.counters + n_block * gridDim.x + slice;
    last = atomicAdd(counter, 1u) == static_cast<uint32_t>(job.splits - 1);
    if (last) *counter = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int t = threadIdx.x / kBlockOutputs; t < tokens; t += kStep) {
    if (col >= cols) continue;
    float v = 0;
    for (int s = 0; s < job.splits; ++s)
      v += __ldcg(partials + s * split_stride + static_cast<int64_t>(t) * job.w.out);
    store_output(job, row0 + t, col0 + col, v);
  }
}

// Grid: slices of kTokens rows (neighbours share the words in L2) x runs of 128 outputs x splits of k.
template <int kBits, int kTokens, bool kZeros>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    marlin_gemm_kernel(const __grid_constant__ MarlinJob job) {
  using S = MarlinShape<kBits, kTokens>;
  constexpr int kColumns = kTokens / 8;  // mma column tiles
  extern __shared__ __align__(16) uint8_t shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_n = warp % kWarpsN,
            warp_k = warp / kWarpsN;
  const int slice = blockIdx.x, n_block = blockIdx.y, split = blockIdx.z;
  const int chunk = n_block * kWarpsN + warp_n;
  const bool idle = chunk * marlin::kTileN >= job.w.out;  // the last block of an odd number of runs
  const int stages = (job.w.k_tiles() + kStageTiles - 1) / kStageTiles;
  const int block_first = share(stages, split, job.splits), block_last = share(stages, split + 1, job.splits);
  const int first = block_first + share(block_last - block_first, warp_k, kWarpsK);
  const int last = idle ? first : block_first + share(block_last - block_first, warp_k + 1, kWarpsK);
  const Ring<kBits, kTokens, kZeros> ring{job.w, shared + warp * S::kStages * S::kStageBytes, chunk, first,
                                          lane};

#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (first + i < last) ring.fetch(first + i);
    cp_async_commit();
  }
  LaneZeros<kBits> zeros;
  zeros.set_middle();
  alignas(16) __half scales[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) scales[i] = __half(0.f);
  if (!job.w.grouped() && !idle) {
    lane_scales_one_group(scales, job.w, chunk, lane);
    if (kZeros) zeros.set_words(job.w.z + chunk * (S::kZeroBytes / 4), lane);
  }
  auto* x_sh = reinterpret_cast<uint32_t*>(shared + S::kRingBytes);
  const int row0 = slice * kTokens, tokens = min(kTokens, job.rows - row0);
  stage_activations(x_sh, job, row0, tokens, block_first, block_last);
  __syncthreads();

  // Columns past the last token repeat it: a column of the product depends on its own activations only.
  const uint32_t* x_lane[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    x_lane[c] =
        x_sh + min(8 * c + lane / 4, tokens - 1) * activation_stride(block_last - block_first) + lane % 4 * 2;

  float sum[marlin::kSubTiles][kColumns][4] = {}, part[marlin::kSubTiles][kColumns][4] = {};
  for (int st = first; st < last; ++st) {
    cp_async_wait<S::kStages - 2>();
    __syncwarp();  // all lanes' copies of this stage are there, and all have read the stage before
    if (st + S::kStages - 1 < last) ring.fetch(st + S::kStages - 1);
    cp_async_commit();
    if (ring.starts_group(st)) {
      close_group(sum, part, scales);
      ring.group(scales, zeros, st);
    }
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      uint32_t words[kBits];
      ring.words(words, st, i);
      uint2 x[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        x[c] = *reinterpret_cast<const uint2*>(x_lane[c] + 8 * (kStageTiles * (st - block_first) + i));
#pragma unroll
      for (int j = 0; j < marlin::kSubTiles; ++j) {
        uint32_t a[4];
        fragment<kBits>(a, words, j, zeros);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) mma_bf16(part[j][c], a, x[c].x, x[c].y);
      }
    }
  }
  close_group(sum, part, scales);

  cp_async_wait<0>();
  __syncthreads();  // the ring is empty and unread: its place takes the sums, [kWarpsK, kWarpsN, kTokens,
                    // kSumStride]
  auto* sums = reinterpret_cast<float*>(shared);
  float* mine = sums + (warp_k * kWarpsN + warp_n) * kTokens * S::kSumStride;
#pragma unroll
  for (int j = 0; j < marlin::kSubTiles; ++j)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        mine[(8 * c + lane % 4 * 2 + i % 2) * S::kSumStride + 16 * j + lane / 4 + 8 * (i / 2)] = sum[j][c][i];
  __syncthreads();
  reduce_and_store<kTokens, S::kSumStride>(job, sums, slice, n_block, split);
}

// How many blocks share a run of outputs: the estimate of rounds of stages, waves times (stages of a warp +
// the fill of the pipeline), is least; more only where x of a block would not fit its place in shared memory.
int choose_splits(int sms, int n_blocks, int slices, int stages, int tokens, size_t x_bytes) {
  constexpr int kFill = 2;
  int best = 0;
  int64_t best_cost = 0;
  for (int s = 1; s <= stages; ++s) {
    const int block_stages = (stages + s - 1) / s;
    if (static_cast<size_t>(tokens) * static_cast<size_t>(activation_stride(block_stages)) * 4 > x_bytes)
      continue;
    const int64_t blocks = static_cast<int64_t>(n_blocks) * slices * s,
                  slots = static_cast<int64_t>(kBlocksPerSm) * sms;
    const int64_t cost = (blocks + slots - 1) / slots * ((block_stages + kWarpsK - 1) / kWarpsK + kFill);
    if (best == 0 || cost < best_cost) {
      best = s;
      best_cost = cost;
    }
    if (best > 0 && s > 2 * best + 64) break;
  }
  FEWBIT_ASSERT(best > 0);
  return best;
}

template <int kBits, int kTokens, bool kZeros>
void launch_streamed(CudaState& s, MarlinJob job) {
  using S = MarlinShape<kBits, kTokens>;
  const int slices = (job.rows + kTokens - 1) / kTokens, tokens = std::min(kTokens, job.rows);
  const int n_blocks = (job.w.out + kBlockOutputs - 1) / kBlockOutputs;
  const int stages = (job.w.k_tiles() + kStageTiles - 1) / kStageTiles;
  const size_t room = std::min(kActivationBytes, s.max_shared() - S::kRingBytes - 64);
  job.splits = choose_splits(s.sms(), n_blocks, slices, stages, tokens, room);
  if (job.splits > 1)
    job.partials = s.scratch_of<float>(static_cast<int64_t>(slices) * job.splits * kTokens * job.w.out);
  FEWBIT_ASSERT(n_blocks * slices <= CudaState::kCounters);
  job.counters = s.counters;
  const int block_stages = (stages + job.splits - 1) / job.splits;
  const size_t shared = S::kRingBytes + static_cast<size_t>(tokens) * activation_stride(block_stages) * 4;
  auto* kernel = marlin_gemm_kernel<kBits, kTokens, kZeros>;
  FEWBIT_CUDA_CALL(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared));  // so that two blocks share an SM
  kernel<<<dim3(slices, n_blocks, job.splits), kThreads, shared, s.stream>>>(job);
  FEWBIT_CUDA_LAUNCHED();
}

// Variants of the streamed product: one row per (bits, columns of the tile). 8 columns serve decoding of up
// to 8 sequences; 16 read the words once for twice the rows; both with and without zero points.
struct Variant {
  int bits, tokens;
  void (*symmetric)(CudaState&, MarlinJob);
  void (*with_zeros)(CudaState&, MarlinJob);
};
constexpr Variant kVariants[] = {
    {4, 8, launch_streamed<4, 8, false>, launch_streamed<4, 8, true>},
    {4, 16, launch_streamed<4, 16, false>, launch_streamed<4, 16, true>},
    {8, 8, launch_streamed<8, 8, false>, launch_streamed<8, 8, true>},
    {8, 16, launch_streamed<8, 16, false>, launch_streamed<8, 16, true>},
};

constexpr int kDequantTiles = 8;  // k-tiles of a block of marlin_dequantize_kernel: one a warp

// w[n - n0, k] for outputs [n0, n0 + 64 * gridDim.y): a block has a run of 64 outputs and 128 values of k.
// Each warp turns one k-tile into a tile of shared memory; the rows leave in 16-byte pieces.
template <int kBits, class Out>
__global__ void __launch_bounds__(32 * kDequantTiles)
    marlin_dequantize_kernel(const __grid_constant__ MarlinSource w, int chunk0, Out* __restrict__ to) {
  constexpr int kWidth = kDequantTiles * marlin::kTileK, kStride = kWidth + kVec16<Out>;
  extern __shared__ __align__(16) uint8_t shared[];
  auto* tile_sh = reinterpret_cast<Out*>(shared);  // [64, kStride]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunk = chunk0 + blockIdx.y, k0 = blockIdx.x * kWidth, tile = k0 / marlin::kTileK + warp;
  if (tile < w.k_tiles()) {
    const int64_t group = w.grouped() ? tile / w.group_tiles : 0;
    LaneZeros<kBits> zeros;
    zeros.set_middle();
    if (w.z) zeros.set_words(w.z + group * (w.out * kBits / 32) + chunk * (2 * kBits), lane);
    alignas(16) __half scales[8];
    if (w.grouped())
      *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(
          w.s + group * w.out + chunk * marlin::kTileN + marlin::fragment_scale(lane, 0, true));
    else
      lane_scales_one_group(scales, w, chunk, lane);
    uint32_t words[kBits];
    const auto* from = reinterpret_cast<const uint4*>(w.b + static_cast<int64_t>(tile) * (w.out * kBits / 2) +
                                                      chunk * marlin::tile_words(kBits) + lane * kBits);
#pragma unroll
    for (int p = 0; p < kBits / 4; ++p) *reinterpret_cast<uint4*>(&words[4 * p]) = from[p];
#pragma unroll
    for (int j = 0; j < marlin::kSubTiles; ++j) {
      uint32_t a[4];
      fragment<kBits>(a, words, j, zeros);
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        const float scale = __half2float(scales[2 * j + reg % 2]);
        const float low = __uint_as_float(a[reg] << 16), high = __uint_as_float(a[reg] & 0xffff0000u);
        Out* at = tile_sh + marlin::fragment_output(lane, j, reg) * kStride + warp * marlin::kTileK +
                  marlin::fragment_k(lane, reg, 0);
        at[0] = from_f32<Out>(low * scale);
        at[1] = from_f32<Out>(high * scale);
      }
    }
  }
  __syncthreads();
  constexpr int kPieces = kWidth / kVec16<Out>;
  for (int e = threadIdx.x; e < marlin::kTileN * kPieces; e += 32 * kDequantTiles) {
    const int row = e / kPieces, col = e % kPieces * kVec16<Out>;
    if (k0 + col < w.in)
      *reinterpret_cast<uint4*>(to + (static_cast<int64_t>(blockIdx.y) * marlin::kTileN + row) * w.in + k0 +
                                col) = *reinterpret_cast<const uint4*>(tile_sh + row * kStride + col);
  }
}

// Dequantizes outputs [n0, n1) (multiples of 64) to `to` [n1 - n0, in].
template <class Out>
void dequantize_outputs(CudaState& s, const MarlinSource& w, int bits, int64_t n0, int64_t n1, Out* to) {
  constexpr int kWidth = kDequantTiles * marlin::kTileK;
  const size_t shared = sizeof(Out) * marlin::kTileN * (kWidth + kVec16<Out>);
  auto* kernel = bits == 4 ? marlin_dequantize_kernel<4, Out> : marlin_dequantize_kernel<8, Out>;
  const dim3 grid(static_cast<unsigned>((w.in + kWidth - 1) / kWidth),
                  static_cast<unsigned>((n1 - n0) / marlin::kTileN));
  FEWBIT_ASSERT(grid.y <= 65535);
  kernel<<<grid, 32 * kDequantTiles, shared, s.stream>>>(w, static_cast<int>(n0 / marlin::kTileN), to);
  FEWBIT_CUDA_LAUNCHED();
}

MarlinSource source_of(const MarlinView& m) {
  FEWBIT_ASSERT((m.bits == 4 || m.bits == 8) && m.b.dtype == DType::i32 && m.s.dtype == DType::f16);
  FEWBIT_ASSERT(m.b.numel() == m.in / 16 * marlin::words_per_row(m.out, m.bits) &&
                m.s.numel() == m.groups() * m.out);
  FEWBIT_ASSERT(marlin::admits(m.out, m.in, m.group(), m.bits) && m.groups() * m.group() == m.in);
  FEWBIT_ASSERT(!m.z.data || m.z.numel() == m.groups() * m.out * m.bits / 32);
  FEWBIT_ASSERT(aligned16(static_cast<const char*>(m.b.data)) &&
                aligned16(static_cast<const char*>(m.s.data)) &&
                aligned16(static_cast<const char*>(m.z.data)));
  return {.b = static_cast<const uint32_t*>(m.b.data),
          .s = static_cast<const __half*>(m.s.data),
          .z = static_cast<const uint32_t*>(m.z.data),
          .out = static_cast<int>(m.out),
          .in = static_cast<int>(m.in),
          .group_tiles = m.groups() > 1 ? static_cast<int>(m.group() / marlin::kTileK) : 0};
}

void dense_path(CudaState& s, ConstTensorView x, const MarlinView& m, ConstTensorView bias, TensorView y) {
  const MarlinSource w = source_of(m);
  const int64_t most = static_cast<int64_t>(kDenseScratch) / (2 * m.in) / marlin::kTileN * marlin::kTileN;
  const int64_t slab = std::min(m.out, std::max<int64_t>(most, marlin::kTileN));
  auto* weight = s.scratch_of<__nv_bfloat16>(slab * m.in);
  if (bias.data) lay_bias(s, bias, y);
  for (int64_t n0 = 0; n0 < m.out; n0 += slab) {
    const int64_t n1 = std::min(m.out, n0 + slab);
    dequantize_outputs(s, w, m.bits, n0, n1, weight);
    dense_product(s, {.x = x.data,
                      .w = weight,
                      .y = static_cast<char*>(y.data) + n0 * bytes_of(y.dtype),
                      .in_dtype = DType::bf16,
                      .y_dtype = y.dtype,
                      .rows = x.rows(),
                      .in = m.in,
                      .out = n1 - n0,
                      .y_stride = m.out,
                      .add = bias.data != nullptr});
  }
}

}  // namespace

void marlin_gemm(Exec& ex, ConstTensorView x, const MarlinView& m, ConstTensorView bias, TensorView y) {
  FEWBIT_ASSERT(x.dtype == DType::bf16 && (y.dtype == DType::bf16 || y.dtype == DType::f32));
  FEWBIT_ASSERT(!bias.data || (bias.dtype == DType::bf16 && bias.numel() == m.out));
  const int64_t rows = x.rows();
  if (rows == 0) return;
  FEWBIT_ASSERT(x.cols() == m.in && y.rows() == rows && y.cols() == m.out);
  CudaState& s = ex.cuda_state();
  if (rows > kStreamedRows) return dense_path(s, x, m, bias, y);
  FEWBIT_ASSERT(aligned16(static_cast<const char*>(x.data)));
  MarlinJob job{};
  job.w = source_of(m);
  job.x = x.as<__nv_bfloat16>();
  job.bias = static_cast<const __nv_bfloat16*>(bias.data);
  job.y = y.data;
  job.y_f32 = y.dtype == DType::f32;
  job.rows = static_cast<int>(rows);
  const int tokens = rows <= 8 ? 8 : 16;
  for (const Variant& v : kVariants)
    if (v.bits == m.bits && v.tokens == tokens) return (m.z.data ? v.with_zeros : v.symmetric)(s, job);
  bug("no variant of the streamed product for these bits");
}

void marlin_dequantize(Exec& ex, const MarlinView& m, TensorView w) {
  FEWBIT_ASSERT(w.rows() == m.out && w.cols() == m.in && aligned16(static_cast<const char*>(w.data)));
  dispatch_f32_bf16(w.dtype, [&](auto type) {
    using Out = typename decltype(type)::type;
    for (int64_t n0 = 0; n0 < m.out; n0 += int64_t{65535} * marlin::kTileN) {
      const int64_t n1 = std::min(m.out, n0 + int64_t{65535} * marlin::kTileN);
      dequantize_outputs(ex.cuda_state(), source_of(m), m.bits, n0, n1, w.as<Out>() + n0 * m.in);
    }
  });
}

}  // namespace fewbit::cuda
