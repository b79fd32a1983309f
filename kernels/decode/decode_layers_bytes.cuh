#pragma once
// E4M3 weights for decode_layers_kernel.cuh: [out, in] in rows, with a scale for each output. The input of a product is
// rounded to E4M3 with one scale for all of it. Codes of both are exact in f16, and their products in f32.
//
// A tile is 32 rows of 128 bytes. Lane 4 g + t reads 16 neighbouring bytes of the rows g, g + 8, g + 16 and g + 24 at a
// time. Which k the tensor cores take them for does not matter as long as the input agrees. In shared memory the two
// halves of every other row change places, so that the eight lanes of a quarter of a load use eight different banks.
#include "kernels/decode/decode_layers_kernel.cuh"
#include "kernels/grids/row_grid.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "kernels/products/skinny_formats.cuh"

namespace fewbit::cuda::decode_step {

using ByteFormat = skinny::F8Format<skinny::F8Input::widened>;
inline constexpr int kByteOutputs = 32, kByteStageBytes = kByteOutputs * kStageK;

// Loads the tiles of a weight, one lane's part of them: 16 bytes of every fourth row.
struct ByteLoader {
  const uint8_t* codes = nullptr;
  int64_t four_rows = 0;  // bytes

  __device__ __forceinline__ void seek(const Weight& weight, int /*outputs*/, int inputs, int n_tile, int k_tile) {
    const int lane = threadIdx.x % 32;
    four_rows = 4 * static_cast<int64_t>(inputs);
    codes = static_cast<const uint8_t*>(weight.codes) +
            (n_tile * kByteOutputs + lane / 8) * static_cast<int64_t>(inputs) + k_tile * kStageK + lane % 8 * 16;
  }
  __device__ __forceinline__ void fetch(uint8_t* to) {
    const int lane = threadIdx.x % 32;
    to += lane / 8 * kStageK + (lane % 8 ^ lane / 8 % 2 * 4) * 16;
#pragma unroll
    for (int i = 0; i < kByteOutputs / 4; ++i) cp_async16(to + i * 4 * kStageK, codes + i * four_rows);
    codes += kStageK;
  }
};

// The input of a product: first the block's values in bf16, then, once the largest magnitude of all is known, the
// values of their codes in f16.
struct ByteInput {
  uint8_t* x;  // [needed, 128] of two bytes
  InputShared space;
  int first, needed;  // k tiles
  int k_split;
  uint32_t parity;    // of the exchange with the cluster's other blocks
  float fixed;        // RowQuant::fixed
  float max_abs = 0;  // of what this thread has put
  float scale = 0;    // of the codes; set by finish()

  // Stores the values n .. n + 7, which are bf16 already. Those outside of the block's split of k count for the scale
  // alone.
  __device__ __forceinline__ void put(int n, const float (&v)[8], bool active) {
    if (!active) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) max_abs = larger_abs(max_abs, v[i]);
    const int own = n - first * kStageK;
    if (own < 0 || own >= needed * kStageK) return;
    *reinterpret_cast<uint4*>(x + 2 * own) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                                              pack_bf16(v[6], v[7])};
  }
  // Called by all consumer threads once everything is put; a consumer_sync() must follow before the values are read.
  // `split`: each block of the cluster has put its split of k, else each has put everything.
  __device__ __forceinline__ void finish(bool split) {
#ifdef FEWBIT_SM90A
    const auto larger = [](float a, float b) { return larger_abs(a, b); };
    max_abs = warp_reduce(max_abs, larger);
    if (threadIdx.x % 32 == 0) space.max_abs[threadIdx.x / 32] = max_abs;
    consumer_sync();
    max_abs = warp_reduce(space.max_abs[threadIdx.x % kConsumerWarps], larger, kConsumerWarps);
    if (split) {
      float* sent = space.max_abs + kConsumerWarps;
      if (threadIdx.x == 0) barrier_expect(space.max_barrier, kKSplits * static_cast<int>(sizeof(float)));
      if (threadIdx.x < kKSplits)
        send_to_block(static_cast<int>(threadIdx.x), sent + k_split, space.max_barrier, max_abs);
      barrier_await(shared_address(space.max_barrier), parity);
#pragma unroll
      for (int s = 0; s < kKSplits; ++s) max_abs = larger_abs(max_abs, sent[s]);
    }
    scale = row_scale(max_abs, fixed, kF8Max);
    const float inverse = 1.f / scale;
    for (int n = 8 * threadIdx.x; n < needed * kStageK; n += 8 * kConsumerThreads) {
      float v[8];
      unpack8(*reinterpret_cast<const uint4*>(x + 2 * n), v);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = mul_rn(v[i], inverse);
      ByteFormat::put(x + 2 * n, v);
    }
#endif
  }
};

// The output of attention, or silu(gate) * up, as the input of a product. The former is small enough for every block to
// read all of it.
template <class Barrier>
__device__ __forceinline__ void load_plain(const Job& job, int product, ByteInput& input, const Barrier& barrier) {
  barrier.wait();
  const __nv_bfloat16* from = product == kOut ? job.attended : job.gate_up;
  const int begin = product == kOut ? 0 : input.first * kStageK,
            end = product == kOut ? job.product[kOut].k_tiles * kStageK : begin + input.needed * kStageK;
  constexpr int kStride = 8 * kConsumerThreads, kTogether = 4;  // loads first: one trip to the L2 for all of them
#pragma unroll 1
  for (int n = begin + 8 * static_cast<int>(threadIdx.x); n < end; n += kTogether * kStride) {
    uint4 loaded[kTogether] = {}, ups[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (n + i * kStride < end) {
        const int at = n + i * kStride;
        loaded[i] = load8_cg(from + at);
        if (product == kDown) ups[i] = load8_cg(from + job.inner + at);
      }
#pragma unroll 1  // the code of one is long, and runs once a layer
    for (int i = 0; i < kTogether && n + i * kStride < end; ++i) {
      float v[8], up[8];
      unpack8(loaded[0], v);
      if (product == kDown) {
        unpack8(ups[0], up);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = gated(v[j], up[j]);
      }
      input.put(n + i * kStride, v, true);
#pragma unroll
      for (int j = 0; j + 1 < kTogether; ++j) loaded[j] = loaded[j + 1], ups[j] = ups[j + 1];
    }
  }
  input.finish(product == kDown);
  consumer_sync();
}

// The norm of the residual stream as the input of a product. Waits for the phase before once the norm's weight is at
// hand. Every block norms all of the stream, at most kMaxByteHidden values, since the input's scale depends on all.
template <class Barrier>
__device__ __forceinline__ void load_normed(const Job& job, ByteInput& input, const __nv_bfloat16* weight,
                                            const Barrier& barrier, float* shared) {
  constexpr int kUnits = kMaxByteHidden / (8 * kConsumerThreads);
  const auto at = [](int u) { return 8 * (static_cast<int>(threadIdx.x) + u * kConsumerThreads); };
  uint4 weights[kUnits] = {}, values[kUnits] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
    if (at(u) < job.hidden) weights[u] = *reinterpret_cast<const uint4*>(weight + at(u));
  barrier.wait();
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
    if (at(u) < job.hidden) values[u] = load8_cg(job.x + at(u));
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    float v[8];
    unpack8(values[u], v);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares);
  }
  const float inverse = 1.f / sqrtf(consumer_sum(squares, shared) / static_cast<float>(job.hidden) + job.eps);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    float v[8], w[8];
    unpack8(values[u], v);
    unpack8(weights[u], w);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = rounded(v[i] * inverse * (w[i] + job.weight_offset));
    input.put(at(u), v, at(u) < job.hidden);
  }
  input.finish(false);
  consumer_sync();
}

// The input of a product: see that of packed weights.
template <class Barrier>
__device__ __forceinline__ void load_values(const Job& job, int product, ByteInput& input, const __nv_bfloat16* weight,
                                            const Barrier& barrier, float* shared) {
  if (weight)
    load_normed(job, input, weight, barrier, shared);
  else
    load_plain(job, product, input, barrier);
}

#ifdef FEWBIT_SM90A
// A consumer warp of bytes, at its place in its ring.
template <bool kShares>
struct ByteConsumer {
  StageRing ring;
  int stage = 0;
  uint32_t parity = 0;

  // Multiplies the warp's next tile and adds to `sums`: sums[j][s], of half s of each lane's codes, has the outputs
  // 16 j + lane / 4 (element 0) and + 8 (element 2).
  __device__ __forceinline__ void multiply_tile(const ByteInput& input, int k_tile, float (&sums)[2][2][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t* x = input.x + k_tile * (2 * kStageK) + 32 * t;
    const uint8_t* row = ring.stages + stage * kByteStageBytes + g * kStageK + 16 * t;
    barrier_await(shared_address(ring.full + stage), parity);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint8_t* half = row + (s ^ g % 2) * (kStageK / 2);
      const uint4 first = *reinterpret_cast<const uint4*>(x + s * kStageK),
                  second = *reinterpret_cast<const uint4*>(x + s * kStageK + 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 low = *reinterpret_cast<const uint4*>(half + 16 * j * kStageK);
        const uint4 high = *reinterpret_cast<const uint4*>(half + (16 * j + 8) * kStageK);
        ByteFormat::multiply(sums[j][s], low.x, high.x, first.x, first.y);
        ByteFormat::multiply(sums[j][s], low.y, high.y, first.z, first.w);
        ByteFormat::multiply(sums[j][s], low.z, high.z, second.x, second.y);
        ByteFormat::multiply(sums[j][s], low.w, high.w, second.z, second.w);
      }
    }
    __syncwarp();  // all lanes have read the stage
    if (threadIdx.x % 32 < kArrivingLanes) barrier_arrive(ring.empty + stage);
    if (++stage == ring.count) stage = 0, parity ^= 1;
  }
  // Multiplies the warp's parts of so many n tiles, from the nth of the product on; leaves the sums of each, [n_tiles,
  // parts, 32]. sent(): called once those of a shared n tile are there.
  template <class Sent>
  __device__ __forceinline__ void multiply_tiles(const WorkRange& range, int nth, int n_tiles, const ByteInput& input,
                                                 float* sums, const Sent& sent) {
    const int lane = threadIdx.x % 32;
    float* at = sums + lane / 4;
    PartWalk<kShares> walk(range, nth);
#pragma unroll 1
    for (int n = 0; n < n_tiles; ++n, at += kConsumerWarps * kByteOutputs) {
      float* mine = at + walk.part * kByteOutputs;
      float total[2][2][4] = {};
#pragma unroll 1
      for (int k_tile = walk.k.begin; k_tile < walk.k.end; ++k_tile) multiply_tile(input, k_tile, total);
      const bool upper = lane % 4 == 1;  // two lanes in four leave 16 outputs each
      if (lane % 4 < 2) {
        mine[16 * upper] = upper ? total[1][0][0] + total[1][1][0] : total[0][0][0] + total[0][1][0];
        mine[16 * upper + 8] = upper ? total[1][0][2] + total[1][1][2] : total[0][0][2] + total[0][1][2];
      }
      if constexpr (kShares) {
        if (nth + n == kSharedTile) sent();
        walk.go_to(nth + n + 1);
      }
    }
  }
};
#else
template <bool kShares>
struct ByteConsumer;
#endif

// The kind of weights that the kernel is compiled for.
template <bool kShares_ = false>
struct ByteWeights {
  static constexpr bool kZeros = false, kMixture = false, kShares = kShares_;
  static constexpr int kHeads = kHeadsPerBlock;
  static constexpr int kMostInFlight = kMaxInFlight;
  using Record = LayerRecord;
  using Loader = ByteLoader;
  using Input = ByteInput;
  using Consumer = ByteConsumer<kShares>;
  static constexpr int kOutputs = kByteOutputs;
  static constexpr int kOwnOutputs = kOutputs / kKSplits, kExchangeTiles = kExchangeOutputs / kOutputs;
  static constexpr int kStageBytes = kByteStageBytes;
  static constexpr int kInputBytes = 2 * kStageK, kGroupBytes = 0;
  static constexpr int kStaticBytes = 6656;

  __device__ __forceinline__ static Input input(const InputShared& space, const WorkRange& range, int product,
                                                const LayerRecord& layer, int layer_index) {
    return {.x = space.x,
            .space = space,
            .first = range.k0,
            .needed = range.k_count,
            .k_split = static_cast<int>(blockIdx.x) % kKSplits,
            .parity = static_cast<uint32_t>(layer_index & 1),
            .fixed = layer.fixed[product]};
  }
  __device__ __forceinline__ static float factor(const Weight& weight, int output) {
    return static_cast<const float*>(weight.scales)[output];
  }
  __device__ __forceinline__ static float finished(float sum, float factor, const Input& input) {
    return mul_rn(mul_rn(sum, input.scale), factor);
  }
};

}  // namespace fewbit::cuda::decode_step
