#pragma once
// The kernels of routed_experts() for one token whose experts are MXFP4 in tiles, on compute capability 9.0: every
// block makes the choice for itself, so that nothing stands between the router's logits and the weights.
//
// A block has a tile of 16 outputs of the expert that was chosen i-th. Its warps share the matrices (gate and up) and
// parts of k as those of few_experts_kernels.cuh do, whose bits these kernels have. All that a block needs beside its
// weights is there before they are: addresses of all experts in the lanes of a warp, x in shared memory.
#include "kernels/decode/experts/token_choice.cuh"
#include "kernels/device/cluster_stores.cuh"
#include "kernels/device/fp4_codes.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/grids/fp4_tiles.h"
#include "kernels/grids/integer_grid.h"

namespace fewbit::cuda::token_experts_step {

using few_experts_step::gated;

// Blocks are small, since those of four experts of gpt-oss (720) are then all at once on a GPU of 132 multiprocessors.
inline constexpr int kWarps = 4, kThreads = 32 * kWarps, kBlocks = 6;
inline constexpr int kWideParts = kWarps / 2, kDownParts = kWarps;  // of k
// Records of a warp's ring, all but one under way. All blocks ask at once, so that few for each fill the memory's time,
// and the first ones are there early; of down, small rings let more blocks begin before the last of gate and up end.
inline constexpr int kWideStages = 4, kDownStages = 4;
inline constexpr int kOuts = kFp4TileOuts, kMostChosen = 8;
inline constexpr int kRecordBytes = kFp4CodeWords * 4, kHalfBytes = kFp4HalfWords * 4;  // of codes
inline constexpr int kBlockXBytes = kFp4Block * 2, kRecordXBytes = kFp4RecordBlocks * kBlockXBytes;

struct WideJob {
  Router router;
  const Pointers *gate, *up;  // [experts]
  const __nv_bfloat16* x;     // [in]
  __nv_bfloat16* to;          // [top_k, out] in the order of the choice
  int in, out;
  ActKind act;
  SwigluClamp swiglu;
};
struct DownJob {
  Router router;
  const Pointers* down;    // [experts]
  const __nv_bfloat16* x;  // [top_k, in]
  __nv_bfloat16* out;      // [out]
  int in;
  bool add;  // to out
};

// Dynamic shared memory of a block: the warps' rings, x in whole records, the scales of the warps' records.
__host__ __device__ constexpr int x_bytes(int in) { return static_cast<int>(fp4_records(in)) * kRecordXBytes; }
__host__ __device__ constexpr int scale_bytes(int in, int parts) {  // of a warp
  return (static_cast<int>(fp4_records(in)) + parts - 1) / parts * kFp4ScaleBytes;
}
__host__ __device__ constexpr int shared_bytes(int in, int parts, int stages) {
  return kWarps * (stages * kRecordBytes + scale_bytes(in, parts)) + x_bytes(in);
}

#ifdef FEWBIT_SM90A

// Left as it is loaded until the sums are there: to widen it would be to wait for it.
__device__ __forceinline__ __nv_bfloat16 bias_at(uint64_t biases, int output) {
  __nv_bfloat16 bias{};
  if (biases) bias = reinterpret_cast<const __nv_bfloat16*>(biases)[output];
  return bias;
}

// 1 KB of codes on their way, if at all; each lane reads what it has copied itself, so that no barrier stands between.
__device__ __forceinline__ void copy_record(uint32_t to, const uint8_t* from, bool there) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16;\n"
      "@p cp.async.cg.shared.global [%0 + 512], [%1 + 512], 16;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<int>(there))
      : "memory");
}

// A warp's records on their way through its ring in shared memory, and their products with x.
template <int kStages>
struct Ring {
  uint8_t *stages, *scales;  // this lane's
  const uint8_t* from = nullptr;
  int left = 0;

  // Shared memory of the block as shared_bytes() has it.
  __device__ __forceinline__ Ring(uint8_t* shared, int warp, int in, int parts)
      : stages(shared + warp * kStages * kRecordBytes + threadIdx.x % 32 * 16),
        scales(shared + kWarps * kStages * kRecordBytes + x_bytes(in) + warp * scale_bytes(in, parts)) {}
  __device__ __forceinline__ void fetch(uint8_t* stage) {
    copy_record(shared_address(stage), from, left > 0);
    cp_async_commit();  // of nothing too: records are counted
    --left;
    from += kRecordBytes;
  }
  // Records [begin, end) of a tile of `records`.
  __device__ __forceinline__ void start(const uint8_t* tile, int begin, int end, int records) {
    const int lane = threadIdx.x % 32;
    const uint8_t* scales_from = tile + records * kRecordBytes + begin * kFp4ScaleBytes;
#pragma unroll 1  // code that runs once costs more than the loop
    for (int at = 16 * lane; at < (end - begin) * kFp4ScaleBytes; at += 32 * 16)
      cp_async16(scales + at, scales_from + at);
    from = tile + begin * kRecordBytes + 16 * lane, left = end - begin;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch(stages + i * kRecordBytes);
  }
  // x: in shared memory, this lane's block of the first record.
  __device__ __forceinline__ void multiply(float (&sums)[4], const uint8_t* x, int records) {
    cp_async_wait<kStages - 2>();
    __syncwarp();  // the scales are copies of other lanes
    uint8_t *now = stages, *free = stages + (kStages - 1) * kRecordBytes;
    const uint8_t* own_scales = scales + 2 * (threadIdx.x % 32);
#pragma unroll 1
    for (const uint8_t* end = x + records * kRecordXBytes; x != end; x += kRecordXBytes) {
      cp_async_wait<kStages - 2>();
      fetch(free);
      multiply_record(sums, now, *reinterpret_cast<const uint16_t*>(own_scales), x);
      own_scales += kFp4ScaleBytes;
      free = now;
      now = now == stages + (kStages - 1) * kRecordBytes ? stages : now + kRecordBytes;
    }
    cp_async_wait<0>();
  }

 private:
  static __device__ __forceinline__ void multiply_record(float (&sums)[4], const uint8_t* record, uint32_t scales,
                                                         const uint8_t* x) {
    const uint4 low = *reinterpret_cast<const uint4*>(record);
    const uint4 high = *reinterpret_cast<const uint4*>(record + kHalfBytes);
    const uint32_t low_factor = fp4_factor(scales & 0xff), high_factor = fp4_factor(scales >> 8);
    const uint32_t lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      // All rows of the product have the token's x: what the others make nobody wants.
      const uint4 v = *reinterpret_cast<const uint4*>(x + 16 * word);
      uint32_t first[4], second[4];
      fp4_operands(first, second, lows[word], highs[word], low_factor, high_factor);
      mma_bf16(sums, first, v.x, v.y);
      mma_bf16(sums, second, v.z, v.w);
    }
  }
};

// The outputs of a warp's sums to shared memory, [kOuts].
__device__ __forceinline__ void keep_sums(float* to, const float (&sums)[4]) {
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0) to[lane / 4] = sums[0], to[lane / 4 + 8] = sums[2];
}
// Of warps [first, first + count), with the bias where there is one, rounded to bf16.
template <int kCount>
__device__ __forceinline__ float value(const float (&sums)[kWarps][kOuts], int first, int o, bool biased,
                                       __nv_bfloat16 bias) {
  float sum = sums[first][o];
#pragma unroll
  for (int w = 1; w < kCount; ++w) sum += sums[first + w][o];
  return __bfloat162float(__float2bfloat16_rn(biased ? add_rn(sum, __bfloat162float(bias)) : sum));
}

#endif

// Grid: the chosen experts x tiles of outputs.
template <int kEach>
__global__ void __launch_bounds__(kThreads, kBlocks) wide_kernel(const __grid_constant__ WideJob job) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float sums_sh[kWarps][kOuts];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % kWideParts;
  const int records = static_cast<int>(fp4_records(job.in)), begin = records * part / kWideParts,
            end = records * (part + 1) / kWideParts;
  const auto tile = static_cast<int>(blockIdx.y);
  uint8_t* x_sh = shared + kWarps * kWideStages * kRecordBytes;
  Ring<kWideStages> ring(shared, warp, job.in, kWideParts);
  LanePointers<kEach> weights, up_biases, gate_biases;
  weights.load(warp < kWideParts ? job.up : job.gate, job.router.experts, &Pointers::w);
  if (warp == 0) {
    up_biases.load(job.up, job.router.experts, &Pointers::bias);
    gate_biases.load(job.gate, job.router.experts, &Pointers::bias);
  }
  // Codes of blocks that are not there are zeros, which may meet any number.
  if (const int at = job.in * 2 + 16 * static_cast<int>(threadIdx.x); at < x_bytes(job.in))
    *reinterpret_cast<uint4*>(x_sh + at) = uint4{};
  await_predecessor();
  allow_successor();  // now, so that the next kernel finds what the ones before this one have written
  LaneExperts<kEach> experts(job.router);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < job.in / 8; i += kThreads) cp_async16(x_sh + 16 * i, job.x + 8 * i);
  cp_async_commit();
  const int expert = experts.take(blockIdx.x);
  const auto* w = reinterpret_cast<const uint8_t*>(weights.at(expert));
  ring.start(w + tile * fp4_tile_words(job.in) * 4, begin, end, records);
  const int o = lane % kOuts;
  uint64_t biases = 0;
  __nv_bfloat16 bias{};
  if (warp == 0) {
    const uint64_t of_up = up_biases.at(expert), of_gate = gate_biases.at(expert);
    biases = lane < kOuts ? of_up : of_gate;
    bias = bias_at(biases, tile * kOuts + o);
  }
  cp_async_wait<kWideStages - 1>();  // x, the oldest
  __syncthreads();
  float sums[4] = {};
  ring.multiply(sums, x_sh + begin * kRecordXBytes + lane % 4 * kBlockXBytes, end - begin);
  keep_sums(sums_sh[warp], sums);
  __syncthreads();
  if (warp != 0) return;
  // Ups, then gates.
  const float v = value<kWideParts>(sums_sh, lane / kOuts * kWideParts, o, biases != 0, bias);
  const float g = __shfl_down_sync(0xffffffffu, v, kOuts);
  if (lane < kOuts)
    job.to[static_cast<int64_t>(blockIdx.x) * job.out + tile * kOuts + o] =
        __float2bfloat16_rn(gated(g, v, job.act, job.swiglu));
#endif
}

#ifdef FEWBIT_SM90A

// A warp's own part of x to shared memory, in bytes [begin, end), and zeros up to `padded`.
__device__ __forceinline__ void load_part(uint8_t* to, const uint8_t* from, int begin, int end, int padded) {
  constexpr int kAtOnce = 4, kStep = 32 * 16;
#pragma unroll 1
  for (int first = begin + threadIdx.x % 32 * 16; first < padded; first += kAtOnce * kStep) {
    uint4 v[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kStep < end) v[i] = __ldcg(reinterpret_cast<const uint4*>(from + first + i * kStep));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * kStep < padded) *reinterpret_cast<uint4*>(to + first + i * kStep) = v[i];
  }
  __syncwarp();
}

#endif

// Grid: the chosen experts, which are a cluster, x tiles of outputs. Its predecessor begins behind all that made the
// logits, so these may be looked at before it has ended, and weights be on their way.
template <int kEach>
__global__ void __launch_bounds__(kThreads, kBlocks) down_kernel(const __grid_constant__ DownJob job) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float sums_sh[kWarps][kOuts], answers[kMostChosen][kOuts];
  __shared__ __align__(8) uint64_t answered;
  allow_successor();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = static_cast<int>(blockIdx.x);
  // The first block of a cluster is told what all of them make.
  if (slot == 0 && threadIdx.x == 0) {
    barrier_init(&answered, 1);
    barrier_publish();
    barrier_expect(&answered, gridDim.x * kOuts * sizeof(float));
  }
  __syncwarp();
  cluster_arrive_relaxed();
  const int records = static_cast<int>(fp4_records(job.in)), begin = records * warp / kDownParts,
            end = records * (warp + 1) / kDownParts;
  const auto tile = static_cast<int>(blockIdx.y);
  uint8_t* x_sh = shared + kWarps * kDownStages * kRecordBytes;
  LaneExperts<kEach> experts(job.router);
  LanePointers<kEach> weights, all_biases;
  weights.load(job.down, job.router.experts, &Pointers::w);
  if (warp == 0) all_biases.load(job.down, job.router.experts, &Pointers::bias);
  Ring<kDownStages> ring(shared, warp, job.in, kDownParts);
  const LaneExperts<kEach> untaken = experts;
  const int expert = experts.take(slot), o = lane % kOuts;
  const auto* w = reinterpret_cast<const uint8_t*>(weights.at(expert));
  ring.start(w + tile * fp4_tile_words(job.in) * 4, begin, end, records);
  uint64_t biases = 0;
  __nv_bfloat16 bias{}, before{};
  LaneShare share{};
  __nv_bfloat16* out = job.out + tile * kOuts + o;
  if (warp == 0) {
    biases = all_biases.at(expert);
    bias = bias_at(biases, tile * kOuts + o);
    if (job.add && slot == 0) before = *out;
    if (slot == 0) share = lane_share(job.router, untaken);
  }
  await_predecessor();
  load_part(x_sh, reinterpret_cast<const uint8_t*>(job.x + static_cast<int64_t>(slot) * job.in), begin * kRecordXBytes,
            min(end * kRecordXBytes, job.in * 2), end * kRecordXBytes);
  float sums[4] = {};
  ring.multiply(sums, x_sh + begin * kRecordXBytes + lane % 4 * kBlockXBytes, end - begin);
  keep_sums(sums_sh[warp], sums);
  cluster_wait();
  __syncthreads();
  if (warp != 0) return;
  if (lane < kOuts) send_to_block(0, &answers[slot][o], &answered, value<kDownParts>(sums_sh, 0, o, biases != 0, bias));
  if (slot != 0) return;
  barrier_await(shared_address(&answered), 0);
  float sum = 0;
#pragma unroll 1
  for (int c = 0; c < job.router.top_k; ++c)
    sum = fmaf(__shfl_sync(0xffffffffu, share.share, c), answers[__shfl_sync(0xffffffffu, share.slot, c)][o], sum);
  if (lane >= kOuts) return;
  const __nv_bfloat16 rounded = __float2bfloat16_rn(sum);
  *out = job.add ? __float2bfloat16_rn(__bfloat162float(before) + __bfloat162float(rounded)) : rounded;
#endif
}

}  // namespace fewbit::cuda::token_experts_step
