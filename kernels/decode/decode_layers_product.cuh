#pragma once
// The products of decode_layers_kernel.cuh: the consumer warps of a block multiply the tiles of their rings, the blocks
// of a cluster exchange their partial sums, and the epilogue finishes the outputs. Here also packed weights; bytes are
// in decode_layers_bytes.cuh.
#include "kernels/decode/decode_layers_peer.cuh"
#include "kernels/decode/decode_layers_pipeline.cuh"
#include "kernels/device/cluster_stores.cuh"
#include "kernels/device/flagged_partials.cuh"

namespace fewbit::cuda::decode_step {

#ifdef FEWBIT_SM90A
// The address in shared memory, in a register: the compiler would make it again for every use.
__device__ __forceinline__ uint32_t held(const void* shared) {
  uint32_t address = shared_address(shared);
  asm volatile("" : "+r"(address));
  return address;
}

// The parts of k that a consumer warp has of the n tiles of a product.
template <bool kShares>
struct PartWalk {
  const WorkRange& range;
  int part;
  KSpan k;

  __device__ __forceinline__ PartWalk(const WorkRange& of, int nth) : range(of) { go_to(nth); }
  __device__ __forceinline__ void go_to(int nth) {
    part = part_of<kShares>(threadIdx.x / 32, nth);
    k = (kShares && nth == kSharedTile ? range.shared_parts : range.parts)[part];
  }
};

// A consumer warp of packed weights, at its place in its ring.
template <bool kZeros, bool kShares>
struct PackedConsumer {
  StageRing ring;
  int stage = 0;
  uint32_t parity = 0;
  uint32_t full = held(ring.full), empty = held(ring.empty);

  // Multiplies the warp's next tile and adds to the lane's totals, one sum for each limb.
  __device__ __forceinline__ void multiply_tile(const LimbInput& input, int k_tile, const LimbLane& lane,
                                                float (&total)[8]) {
    const uint8_t* x = input.x + k_tile * kGroupLimbBytes + lane.offset;
    // Codes mean code - 8: sums begin with what the 8 takes off. With zero points they begin with nothing, and an
    // eighth of that is taken off for each unit of the zero point.
    const int of_eight = lane.start(input.groups[k_tile]), start = kZeros ? kOffset : of_eight;
    int32_t sums[2][4] = {{start, start, start, start}, {start, start, start, start}};
    const float input_scale = input.groups[k_tile].scale;
    barrier_await(full + 8 * stage, parity);
    const uint8_t* at = ring.stages + stage * packed_stage_bytes(kZeros);
    const auto* words = reinterpret_cast<const uint4*>(at) + threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kStageTiles / 4; ++half) {
      const uint4 limbs = *reinterpret_cast<const uint4*>(x + limb_word_at(4 * half, 0, 0));
      lane.add_tile(sums, words[(4 * half + 0) * (kMarlinTileBytes / 16)], limbs.x);
      lane.add_tile(sums, words[(4 * half + 1) * (kMarlinTileBytes / 16)], limbs.y);
      lane.add_tile(sums, words[(4 * half + 2) * (kMarlinTileBytes / 16)], limbs.z);
      lane.add_tile(sums, words[(4 * half + 3) * (kMarlinTileBytes / 16)], limbs.w);
    }
    alignas(16) __half scales[8];
    *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(
        at + kStageTiles * kMarlinTileBytes + 2 * marlin::fragment_scale(threadIdx.x % 32, 0, true));
    uint32_t zeros = 0;
    if constexpr (kZeros)
      zeros = reinterpret_cast<const uint32_t*>(at + kStageTiles * kMarlinTileBytes +
                                                marlin::kTileN * 2)[marlin::fragment_zero_word(threadIdx.x % 32, 0, 4)];
    __syncwarp();  // all lanes have read the stage
    if (threadIdx.x % 32 < kArrivingLanes) barrier_arrive(empty + 8 * stage);
    if (++stage == ring.count) stage = 0, parity ^= 1;
    const float unit = kZeros && lane.t < kLimbs ? LimbLane::value(of_eight) / 8 : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float sum = LimbLane::value(sums[i / 4][i % 4]);
      if constexpr (kZeros) sum = fmaf(unit, small_integer(zeros >> (4 * marlin::fragment_zero_field(i, 4))), sum);
      total[i] = fmaf(__half2float(scales[i]) * input_scale, sum, total[i]);
    }
  }
  // Multiplies the warp's parts of so many n tiles, from the nth of the product on; leaves the sums of each, [n_tiles,
  // parts, 64]. sent(): called once those of a shared n tile are there.
  template <class Sent>
  __device__ __forceinline__ void multiply_tiles(const WorkRange& range, int nth, int n_tiles, const LimbInput& input,
                                                 float* sums, const Sent& sent) {
    const LimbLane lane(threadIdx.x % 32);
    float* mine = sums + marlin::fragment_output(threadIdx.x % 32, lane.t, 0);
    PartWalk<kShares> walk(range, nth);
#pragma unroll 1
    for (int n = 0; n < n_tiles; ++n, mine += kConsumerWarps * marlin::kTileN) {
      float total[8] = {};
#pragma unroll 1
      for (int k_tile = walk.k.begin; k_tile < walk.k.end; ++k_tile) multiply_tile(input, k_tile, lane, total);
      const float2 two = lane.gather(total);
      mine[walk.part * marlin::kTileN] = two.x;
      mine[walk.part * marlin::kTileN + 8] = two.y;
      if constexpr (kShares) {
        if (nth + n == kSharedTile) sent();
        walk.go_to(nth + n + 1);
      }
    }
  }
};

// The partial sums that the blocks of a cluster send each other through distributed shared memory: two buffers in turn.
template <class Weights>
struct ClusterSums {
  static constexpr int kOwnOutputs = Weights::kOwnOutputs, kExchangeTiles = Weights::kExchangeTiles;
  float* sums;         // [2, kKSplits, kExchangeTiles, kOwnOutputs]
  uint64_t* barriers;  // [2]
  int buffer = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ float* at(int k_split) const {
    return sums + (buffer * kKSplits + k_split) * (kExchangeTiles * kOwnOutputs);
  }
  __device__ __forceinline__ void expect(int n_tiles) const {
    barrier_expect(barriers + buffer, n_tiles * kKSplits * kOwnOutputs * static_cast<int>(sizeof(float)));
  }
  // This block's sum of output n of an n tile, to the block of the cluster that finishes it.
  __device__ __forceinline__ void send(int k_split, int n_tile, int n, float value) const {
    send_to_block(n / kOwnOutputs, at(k_split) + n_tile * kOwnOutputs + n % kOwnOutputs, barriers + buffer, value);
  }
  __device__ __forceinline__ void wait() const { barrier_await(shared_address(barriers + buffer), parity); }
  __device__ __forceinline__ float sum(int n_tile, int n) const {
    float v = 0;
#pragma unroll
    for (int s = 0; s < kKSplits; ++s) v += at(s)[n_tile * kOwnOutputs + n];
    return v;
  }
  __device__ __forceinline__ void flip() {
    buffer ^= 1;
    if (buffer == 0) parity ^= 1;
  }
};

// Finishes outputs: output n of n tile `n_tile` of a product.
template <class Weights>
struct Epilogue {
  const Job& job;
  const LayerRecord& layer;
  float* own_x;        // [kMaxOwnOutputs]: the block's outputs of the residual stream
  uint32_t stamp = 0;  // of a mixture's stream behind o; else of the exchange of o with the other GPU

  // Depends on the weight alone: read ahead of the sum.
  __device__ __forceinline__ float factor(int product, int n_tile, int n) const {
    const TilePosition at(job, product, n_tile);
    return Weights::factor(layer.weights[at.weight], at.n_tile * Weights::kOutputs + n);
  }
  // Of a mixture: output n of the n tiles `pair` of gate and of up, counted through the chosen experts.
  __device__ __forceinline__ void finish_pair(int pair, int n, float gate, float up) const {
    put_value(job.activated_words + pair * Weights::kOutputs + n, gated(rounded(gate), rounded(up)), stamp);
  }
  __device__ __forceinline__ void finish_qkv(int n_tile, int n, float sum) const {
    const int at = n_tile * Weights::kOutputs + n;
    const TilePosition of_weight(job, kQkv, n_tile);
    const __nv_bfloat16* bias = layer.bias[of_weight.weight];
    if (bias) sum += to_f32(bias[of_weight.n_tile * Weights::kOutputs + n]);
    if constexpr (Weights::kMixture) put_value(job.qkv_words + at, rounded(sum), stamp);
    job.qkv[at] = __float2bfloat16_rn(sum);
  }
  // `nth`: how many n tiles of the product the block has finished before. Of a mixture o and down alone.
  __device__ __forceinline__ void finish(int product, int n_tile, int n, int nth, float sum) const {
    const int at = n_tile * Weights::kOutputs + n;
    if (!Weights::kMixture && product == kQkv) {
      finish_qkv(n_tile, n, sum);
    } else if (!Weights::kMixture && product == kGateUp) {
      job.gate_up[at] = __float2bfloat16_rn(sum);
    } else {
      float& x = own_x[nth * Weights::kOwnOutputs + n % Weights::kOwnOutputs];
      const int second = product == kDown ? 1 : 0;
      if constexpr (Weights::kMixture) {
        if (second) sum = rounded(sum);  // as the sum of experts is before it is added
      } else if (job.peer.present()) {
        sum = with_other_part(job.peer, second * job.hidden + at, sum, stamp + second);
      }
      x = rounded(x + sum);
      if constexpr (Weights::kMixture) {
        put_value(job.stream + at, x, stamp + second);
        if (product == kOut) return;
      }
      job.x[at] = __float2bfloat16_rn(x);
    }
  }
};

// The sum of output n of an n tile over the warps' parts; `sums` as in run_product().
template <class Weights>
__device__ __forceinline__ float sum_of_parts(const float* sums, int n_tile, int n) {
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kConsumerWarps; ++p) sum += sums[(n_tile * kConsumerWarps + p) * Weights::kOutputs + n];
  return sum;
}

// A mixture's q, k and v, or gates and ups: the block has all of k, so that no other has a part of a sum.
template <class Weights>
__device__ __forceinline__ void run_unsplit(int product, const WorkRange& range, const typename Weights::Input& input,
                                            typename Weights::Consumer& consumer, float* sums,
                                            const Epilogue<Weights>& epilogue) {
  constexpr int kOutputs = Weights::kOutputs, kTiles = Weights::kExchangeTiles;
  static_assert(kTiles % 2 == 0);  // whole pairs
#pragma unroll 1
  for (int first = 0; first < range.n_count; first += kTiles) {
    const int n_tiles = min(kTiles, range.n_count - first), pairs = product == kGateUp ? 1 : 0;
    consumer.multiply_tiles(range, first, n_tiles, input, sums, [] {});
    consumer_sync();
#pragma unroll 1
    for (int e = threadIdx.x; e < (n_tiles >> pairs) * kOutputs; e += kConsumerThreads) {
      const int of = (e / kOutputs) << pairs, n = e % kOutputs, n_tile = range.tile(first + of);
      const float sum = sum_of_parts<Weights>(sums, of, n);
      if (pairs)
        epilogue.finish_pair(n_tile / 2, n, sum, sum_of_parts<Weights>(sums, of + 1, n));
      else
        epilogue.finish_qkv(n_tile, n, sum);
    }
    if (first + kTiles < range.n_count) consumer_sync();  // the sums have been read
  }
}

// The sums of shared n tiles, which go from cluster to cluster through device memory as words that are their own flags
// (kernels/device/flagged_partials.cuh). A word is set back by its only reader, which then arrives at a barrier of the
// grid; the next product with shared n tiles comes behind that.
template <class Weights>
struct SharedSums {
  static constexpr int kOutputs = Weights::kOutputs;
  float* words;  // of the block's shared n tile, [parts, outputs]
  int parts;     // of k: the blocks of all sharers

  __device__ __forceinline__ SharedSums(int product, const WorkRange& range, const Job& job)
      : words(job.shared_sums), parts(job.product[product].sharers * kKSplits) {
    words += range.shared_tile % clusters() * parts * kOutputs;  // its number among those that are left over
  }
  // Called by every consumer warp once it has left its sums; the first warp, whose parts are the shortest, adds and
  // sends them while the others go on.
  __device__ __forceinline__ void send(int part, const float* sums) const {
    if (threadIdx.x >= 32) {
      asm volatile("bar.arrive 2, %0;" ::"n"(kConsumerThreads) : "memory");
      return;
    }
    asm volatile("bar.sync 2, %0;" ::"n"(kConsumerThreads) : "memory");
#pragma unroll
    for (int n = threadIdx.x; n < kOutputs; n += 32) {
      const float sum = sum_of_parts<Weights>(sums, 0, n);
      asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(words + part * kOutputs + n), "f"(sum) : "memory");
    }
  }
  // The sum of output n over all parts, in their order.
  __device__ __forceinline__ float take(int n) const {
    constexpr int kTogether = 8;  // loads first
    float sum = 0;
#pragma unroll 1
    for (int first = 0; first < parts; first += kTogether) {
      float v[kTogether];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          v[i] = 0;
          if (first + i < parts)
            v[i] = load_flagged_word(reinterpret_cast<const float4*>(words + (first + i) * kOutputs + n));
          there = there && __float_as_uint(v[i]) != kUnwritten;
        }
      } while (!there);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i < parts) __stcg(reinterpret_cast<uint32_t*>(words + (first + i) * kOutputs + n), kUnwritten);
        sum += v[i];
      }
    }
    return sum;
  }
};

// A product: the block's tiles, the exchange of the cluster's sums, the epilogue. `sums`: [kExchangeTiles,
// kConsumerWarps, outputs of an n tile] of shared memory.
template <class Weights>
__device__ __forceinline__ void run_product(int product, const WorkRange& range, const typename Weights::Input& input,
                                            typename Weights::Consumer& consumer, ClusterSums<Weights>& cluster_sums,
                                            int k_split, float* sums, const Epilogue<Weights>& epilogue) {
  constexpr int kOutputs = Weights::kOutputs, kOwnOutputs = Weights::kOwnOutputs,
                kExchangeTiles = Weights::kExchangeTiles;
  if constexpr (Weights::kMixture)
    if (product == kQkv || product == kGateUp)
      return run_unsplit<Weights>(product, range, input, consumer, sums, epilogue);
  // The block's own n tiles, so many at a time. A shared one, which comes in front of them, leaves its sums in the same
  // place, and is finished with the last of them: it takes no round of its own, which would be a wait more.
  const bool shares = Weights::kShares && range.shared_tile >= 0;
  const int most = kExchangeTiles - (shares ? 1 : 0);
#pragma unroll 1
  for (int first = 0; first < range.n_count; first += most) {
    const int n_tiles = min(most, range.n_count - first), before = shares && first == 0 ? 1 : 0;
    const bool takes = Weights::kShares && first + n_tiles < range.finished && first + n_tiles == range.n_count;
    // The output that this thread finishes: n of the `own`-th n tile; the shared one is numbered behind the block's.
    const int own = threadIdx.x / kOwnOutputs, n = k_split * kOwnOutputs + threadIdx.x % kOwnOutputs;
    static_assert(kExchangeTiles * kOwnOutputs <= kConsumerThreads);
    const int n_tile = range.n_begin + (first + own) * clusters();
    const bool finishes = own < n_tiles + (takes ? 1 : 0);
    const float factor = finishes ? epilogue.factor(product, n_tile, n) : 0.f;
    if (threadIdx.x == 0) cluster_sums.expect(n_tiles);
    consumer.multiply_tiles(range, first - before, n_tiles + before, input, sums, [&] {
      SharedSums<Weights>(product, range, epilogue.job).send(range.sharer * kKSplits + k_split, sums);
    });
    consumer_sync();
#pragma unroll 1
    for (int e = threadIdx.x; e < n_tiles * kOutputs; e += kConsumerThreads) {
      const int of = e / kOutputs, output = e % kOutputs;
      cluster_sums.send(k_split, of, output, sum_of_parts<Weights>(sums, of + before, output));
    }
    cluster_sums.wait();
    float sum = cluster_sums.sum(own < n_tiles ? own : 0, threadIdx.x % kOwnOutputs);
    cluster_sums.flip();
    if constexpr (Weights::kShares)
      if (takes && own == n_tiles) sum = SharedSums<Weights>(product, range, epilogue.job).take(n);
    if (finishes) epilogue.finish(product, n_tile, n, first + own, Weights::finished(sum, factor, input));
    if (first + n_tiles < range.n_count) consumer_sync();  // the sums have been read
  }
}
#endif

template <bool kZeros, bool kShares>
struct PackedConsumer;
// Weights of 4 bits in groups of 128, in the Marlin layout, with zero points or without.
template <bool kZeros_, bool kShares_ = false>
struct PackedWeights {
  static constexpr bool kZeros = kZeros_, kMixture = false, kShares = kShares_;
  static constexpr int kHeads = kHeadsPerBlock;
  static constexpr int kMostInFlight = kMaxInFlight;
  using Record = std::conditional_t<kZeros, ZeroLayerRecord, LayerRecord>;
  using Loader = PackedLoader<kZeros>;
  using Input = LimbInput;
  using Consumer = PackedConsumer<kZeros, kShares>;
  static constexpr int kOutputs = marlin::kTileN;  // of an n tile
  static constexpr int kOwnOutputs = kOutputs / kKSplits, kExchangeTiles = kExchangeOutputs / kOutputs;
  static constexpr int kStageBytes = packed_stage_bytes(kZeros);
  static constexpr int kInputBytes = kGroupLimbBytes, kGroupBytes = sizeof(LimbGroup);  // of a k tile of the input
  static constexpr int kStaticBytes = 6592;  // 6,528, and what a fifth stage of Qwen3 32B leaves

  __device__ __forceinline__ static Input input(const InputShared& space, const WorkRange& range, int,
                                                const LayerRecord&, int) {
    return {space.x, reinterpret_cast<LimbGroup*>(space.groups), range.k0, range.k_count};
  }
  __device__ __forceinline__ static float factor(const Weight&, int) { return 1; }
  __device__ __forceinline__ static float finished(float sum, float, const Input&) { return sum; }
};
using SymmetricWeights = PackedWeights<false>;
// The same where gate, up and down are those of chosen experts.
struct MixtureWeights : SymmetricWeights {
  static constexpr bool kMixture = true;
  static constexpr int kHeads = kMixtureHeadsPerBlock;
  static constexpr int kMostInFlight = kMixtureInFlight;
  using Record = MixtureLayerRecord;
};

}  // namespace fewbit::cuda::decode_step
