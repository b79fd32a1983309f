#pragma once
// How the weights of decode_layers_kernel.cuh reach the consumer warps: each has a ring of stages in shared memory,
// filled by a producer warp that does nothing else. Which tiles come next is known from the start, through all products
// and layers, so that the weights stream on while the blocks wait for each other at the barriers of the grid.
#include "kernels/decode/decode_layers_input.cuh"
#include "kernels/decode/decode_layers_order.h"
#include "kernels/device/hopper.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda::decode_step {

// A warp's ring of stages, and two barriers for each stage.
struct StageRing {
  uint8_t* stages;  // [count, bytes of a stage]
  uint64_t *full, *empty;
  int count;

  __device__ __forceinline__ StageRing(uint8_t* rings, uint64_t* barriers, int warp, int stages_of_a_warp,
                                       int stage_bytes)
      : stages(rings + warp * stages_of_a_warp * stage_bytes),
        full(barriers + warp * 2 * kMaxStages),
        empty(full + kMaxStages),
        count(stages_of_a_warp) {}
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full + i, 32);  // the copies of every lane of the producer warp
      barrier_init(empty + i, kArrivingLanes);
    }
  }
};

// Arrives at the barrier when the copies that this thread has asked for so far are there.
__device__ __forceinline__ void barrier_arrive_behind_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ int clusters() { return gridDim.x / kKSplits; }

// What a block knows of the mixture of the layer at hand. Behind it the scores f32 [experts, to a multiple of eight],
// integers in their order, and the layer's table of experts.
struct alignas(16) MixtureShared {
  Weight chosen[kMaxTopK * kExpertWeights];
  float shares[kMaxTopK];
  // Barriers of a phase a layer, for the producer warps: complete when `chosen` is; when the next layer's q, k, v and o
  // may be asked for.
  uint64_t known, open;
  int winners[kMaxTopK];             // the chosen experts, best first
  uint32_t launch;                   // how many launches ended before
  alignas(8) uint8_t attention[48];  // an AttentionRange

  __device__ __forceinline__ static int padded(const Job& job) { return (job.experts + 7) / 8 * 8; }
  __device__ __forceinline__ float* scores() { return reinterpret_cast<float*>(this + 1); }
  __device__ __forceinline__ uint32_t* keys(const Job& job) {
    return reinterpret_cast<uint32_t*>(scores() + padded(job));
  }
  __device__ __forceinline__ Weight* table(const Job& job) {
    return reinterpret_cast<Weight*>(keys(job) + padded(job));
  }
};

// Loads the tiles of a weight in the Marlin layout, one lane's part of them.
template <bool kZeros>
struct PackedLoader {
  const uint32_t* words = nullptr;
  const __half* scales = nullptr;
  const uint32_t* zeros = nullptr;
  int out = 0;  // of the weight

  // To tile (n_tile, k_tile) of a weight [outputs, inputs].
  __device__ __forceinline__ void seek(const Weight& weight, int outputs, int /*inputs*/, int n_tile, int k_tile) {
    const int lane = threadIdx.x % 32;
    out = outputs;
    words = static_cast<const uint32_t*>(weight.codes) + static_cast<int64_t>(k_tile) * kStageTiles * (2 * out) +
            n_tile * marlin::tile_words(4) + 4 * lane;
    scales = static_cast<const __half*>(weight.scales) + static_cast<int64_t>(k_tile) * out + n_tile * marlin::kTileN +
             8 * (lane % 8);
  }
  // After seek(), to the zero points of the same tile.
  __device__ __forceinline__ void seek_zeros(const uint32_t* of_weight, int n_tile, int k_tile) {
    zeros =
        of_weight + static_cast<int64_t>(k_tile) * (out / 8) + n_tile * (marlin::kTileN / 8) + 4 * (threadIdx.x % 2);
  }
  // Asks for the tile and goes on to the next along k.
  __device__ __forceinline__ void fetch(uint8_t* to) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) cp_async16(to + i * kMarlinTileBytes + 16 * lane, words + i * (2 * out));
    if (lane < 8) cp_async16(to + kStageTiles * kMarlinTileBytes + 16 * lane, scales);
    if constexpr (kZeros) {
      if (lane / 2 == 4) cp_async16(to + kStageTiles * kMarlinTileBytes + 16 * lane, zeros);  // behind the scales
      zeros += out / 8;
    }
    words += kStageTiles * (2 * out);
    scales += out;
  }
};

// A producer warp at its tiles, with the weights that they are tiles of.
template <class Weights, bool kWhole>
struct TileWalk : TileOrder<Weights::kShares, Weights::kMixture, kWhole> {
  using Order = TileOrder<Weights::kShares, Weights::kMixture, kWhole>;
  using Order::begin, Order::k, Order::layer, Order::n_tile, Order::nth, Order::product;
  const Job& job;
  const typename Weights::Record* layers;  // [count]
  MixtureShared* mixture;                  // or null
  int opened = 0;                          // of a mixture: the layer whose q, k, v and o may be asked for
  typename Weights::Loader loader;

  __device__ __forceinline__ TileWalk(const Job& j, const typename Weights::Record* in_layers,
                                      const WorkRange* in_ranges, int of_warp, MixtureShared* of_block)
      : Order(j, in_ranges, of_warp), job(j), layers(in_layers), mixture(of_block) {
    if (!this->done()) begin_n_tile();
  }
  __device__ __forceinline__ void begin_n_tile() {
    if constexpr (Weights::kMixture)
      if (product >= kGateUp) return;  // the experts are not known yet: fetch() waits for them
    const TilePosition at(job, product, n_tile);
    loader.seek(layers[layer].weights[at.weight], job.out[at.weight], job.product[product].k_tiles * kStageK, at.n_tile,
                k);
    if constexpr (Weights::kZeros) loader.seek_zeros(layers[layer].zeros[at.weight], at.n_tile, k);
  }
#ifdef FEWBIT_SM90A
  // To the weights of an expert, once it is chosen.
  __device__ __forceinline__ void seek_expert() {
    int slot, which, tile = n_tile, k_tile = k;
    if (product == kDown) {
      slot = k / job.expert_k_tiles, which = 2;
      k_tile -= slot * job.expert_k_tiles;
    } else {
      which = n_tile % 2;
      slot = n_tile / 2 / job.end_gate;
      tile = n_tile / 2 - slot * job.end_gate;
    }
    barrier_await(shared_address(&mixture->known), static_cast<uint32_t>(layer & 1));
    loader.seek(mixture->chosen[slot * kExpertWeights + which], job.out[4 + which], 0, tile, k_tile);
  }
  // Of a mixture: waits until the tile at hand is known and may be asked for: of down once half of the warp's last
  // gates and ups are there, so that the memory does not run dry in between. Reading further ahead would be in the way
  // of what others read to end the phase before.
  __device__ __forceinline__ void await_turn() {
    if (product == kDown && nth == 0 && k == begin) cp_async_wait<kMixtureInFlight / 2>();
    if (product < kGateUp && opened < layer) {
      barrier_await(shared_address(&mixture->open), static_cast<uint32_t>(layer & 1) ^ 1);
      opened = layer;
    }
    if (product >= kGateUp && (k == begin || (product == kDown && k % job.expert_k_tiles == 0))) seek_expert();
  }
#endif
  // Asks for the tile at hand and goes on to the next.
  __device__ __forceinline__ void fetch(uint8_t* to) {
#ifdef FEWBIT_SM90A
    if constexpr (Weights::kMixture) await_turn();
#endif
    loader.fetch(to);
    if (this->next()) begin_n_tile();
  }
};

#ifdef FEWBIT_SM90A
// Fills stage `stage` with what `fetch(to)` asks for, once no more than `in_flight` - 1 stages are still on their way,
// and goes on to the next.
template <int kBytes, int kMost, class Fetch>
__device__ __forceinline__ void fill_stage(const StageRing& ring, int& stage, uint32_t& parity, int in_flight,
                                           const Fetch& fetch) {
  barrier_await(shared_address(ring.empty + stage), parity);
  if (in_flight == 1)
    cp_async_wait<0>();
  else
    cp_async_wait<kMost - 1>();
  fetch(ring.stages + stage * kBytes);
  cp_async_commit();
#ifdef FEWBIT_RACECHECK  // racecheck does not follow copies that arrive by themselves
  cp_async_wait<0>();
  barrier_arrive(ring.full + stage);
#else
  barrier_arrive_behind_copies(ring.full + stage);
#endif
  if (++stage == ring.count) stage = 0, parity ^= 1;
}

// The work of a producer warp: as far ahead as its ring has room, but with few stages in flight: together the warps
// keep the memory busy, and what the consumer warps read and write in between would wait behind more.
template <class Weights, bool kWhole>
__device__ __forceinline__ void produce(const Job& job, const typename Weights::Record* layers, const WorkRange* ranges,
                                        const StageRing& ring, int warp, MixtureShared* mixture) {
  TileWalk<Weights, kWhole> walk(job, layers, ranges, warp, mixture);
  int stage = 0;
  uint32_t parity = 1;
  while (!walk.done())
    fill_stage<Weights::kStageBytes, Weights::kMostInFlight>(ring, stage, parity, job.in_flight,
                                                             [&](uint8_t* to) { walk.fetch(to); });
  cp_async_wait<0>();
}
#endif

}  // namespace fewbit::cuda::decode_step
