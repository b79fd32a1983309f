#pragma once
// What the host tells the kernel of decode_layers_kernel.cuh, and how a product is divided among its blocks.
//
// A product is cut into tiles: an n tile of outputs (64, a column of the Marlin layout, or 32 rows of bytes) by a k
// tile of 128 input values (in the Marlin layout one group of scales). A pipeline stage holds one tile. The k tiles are
// split among the blocks of a cluster, the n tiles go round the clusters: neighbouring blocks read neighbouring memory
// at the same time, and a block stays within the few pages of its rows. The blocks of a cluster exchange their partial
// sums, and each of them finishes its half of the outputs of every n tile.
//
// A step takes as long as the block with the most tiles. Where that one has many more than the others, another kernel
// (kShares of a kind of weights) runs: of n tiles that are left over behind whole rounds, several clusters share each,
// a part of k for each, and their sums are handed on through device memory; and those warps of a block that have a k
// tile more than others change from n tile to n tile. It is a kernel of its own because its code is longer, and code
// that runs once a layer is fetched anew each time: 0.5 us of a layer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/decode/decode_peer.h"
#include "src/core/dtype.h"
#include "src/core/marlin_layout.h"

namespace fewbit::cuda::decode_step {

inline constexpr int kConsumerWarps = 8;  // each has a producer warp of its own, which fills its ring
inline constexpr int kConsumerThreads = 32 * kConsumerWarps, kBlockThreads = 2 * kConsumerThreads;
// Registers of a thread after the warps have specialised: together no more than the 128 each that the launch got.
inline constexpr int kConsumerRegisters = 200, kProducerRegisters = 48;

inline constexpr int kStageTiles = 8;  // Marlin tiles of 16 x 64 in a stage
inline constexpr int kStageK = kStageTiles * marlin::kTileK;
inline constexpr int kMarlinTileBytes = marlin::kTileK * marlin::kTileN / 2;  // of 4-bit words
// Words, a row of scales and one of zero points, in whole lines of 128 bytes.
constexpr int packed_stage_bytes(bool zeros) {
  return (kStageTiles * kMarlinTileBytes + marlin::kTileN * 2 + (zeros ? marlin::kTileN / 2 : 0) + 127) / 128 * 128;
}
// Stages of a warp's ring, as many as shared memory has room for; at least three: one being read, one in flight, one
// ahead.
inline constexpr int kMaxStages = 5, kMinStages = 3;
inline constexpr int kMaxInFlight = 2;        // stages that a producer warp has asked for at a time; of mixtures:
inline constexpr int kMixtureInFlight = 4;    // nothing else reads while the experts' weights are on their way
inline constexpr int kKSplits = 2;            // blocks of a cluster, which split k
inline constexpr int kExchangeOutputs = 512;  // outputs whose sums a cluster exchanges at a time: two for each consumer
inline constexpr int kMaxOwnOutputs = 256;    // values of the residual stream that a block can keep
inline constexpr int kMaxSharers = 16;        // clusters that share an n tile: their sums come in one load a thread
inline constexpr int kMaxByteHidden = 8192;   // hidden values where weights are bytes: what the norm's registers hold
inline constexpr int kHeadsPerBlock = 4;      // query heads of a block of attention; of mixtures, whose steps are a
inline constexpr int kMixtureHeadsPerBlock = 2;  // chain of waits, fewer, so that attention takes half as long
inline constexpr int kWeights = 7;               // q k v o gate up down
inline constexpr int kExpertWeights = 3, kMaxTopK = 16, kMaxExperts = 512;
inline constexpr int kMaxRoutedHidden = 4096;  // hidden values of a mixture: what the routing holds in registers

enum Product : int { kQkv, kOut, kGateUp, kDown, kProducts };

// A product in tiles; n tiles are counted through all of its weights. Of a mixture those of kGateUp go through the
// chosen experts, each n tile of gate before that of up, and the k tiles of kDown through them too: their outputs are
// one sum.
struct ProductShape {
  int n_tiles, k_tiles;
  int sharers;  // clusters for each n tile that is left over behind whole rounds; 1: it is one cluster's
};

// K tiles from the block's first on. The consumer warps of a block divide them into as many parts; sums are added in
// the order of the parts, so that no bit depends on who had which.
struct KSpan {
  int begin, end;
};

// The tiles of a product that a block works on.
struct WorkRange {
  int k0, k_count;       // k tiles
  int n_begin, n_count;  // n tiles n_begin, n_begin + n_step, ...
  int n_step;
  int paired;  // of a mixture: those are pairs of n tiles
  // The n tile that the cluster shares (-1: none), its number among the sharers, and the n tiles that the cluster
  // finishes: its own, and the shared one if it is the first of the sharers.
  int shared_tile, sharer, finished;
  KSpan parts[kConsumerWarps], shared_parts[kConsumerWarps];  // of an own n tile, of the shared one

  // Of a mixture: the range's n tile of that number.
  __device__ __forceinline__ int tile(int nth) const {
    return paired ? 2 * (n_begin + (nth >> 1) * n_step) + (nth & 1) : n_begin + nth * n_step;
  }
  __device__ static void set_parts(KSpan (&of)[kConsumerWarps], int begin, int count) {
#pragma unroll 1
    for (int i = 0; i < kConsumerWarps; ++i)
      of[i] = {begin + count * i / kConsumerWarps, begin + count * (i + 1) / kConsumerWarps};
  }
  // Of a mixture, for a block. Sums of q, k, v, gates and ups need no exchange: a block has all of k, and both n tiles
  // of a gate and its up, so that it can apply the activation.
  __device__ void set_mixture(int product, const ProductShape& shape, int block, int blocks) {
    if (product == kOut || product == kDown)
      return set<false>(shape, block % kKSplits, block / kKSplits, blocks / kKSplits);
    paired = product == kGateUp, shared_tile = -1;
    const int all = paired ? shape.n_tiles / 2 : shape.n_tiles;
    k0 = 0, k_count = shape.k_tiles;
    n_begin = block, n_step = blocks;
    n_count = n_begin < all ? (all - n_begin + blocks - 1) / blocks : 0;
    if (paired) n_count *= 2;
    set_parts(parts, 0, k_count);
  }
  template <bool kShares>
  __device__ void set(const ProductShape& shape, int k_split, int cluster, int of_clusters) {
    paired = 0, n_step = of_clusters, n_begin = cluster, shared_tile = -1;
    k0 = k_split * shape.k_tiles / kKSplits;
    k_count = (k_split + 1) * shape.k_tiles / kKSplits - k0;
    set_parts(parts, 0, k_count);
    const int whole = kShares && shape.sharers > 1 ? shape.n_tiles / of_clusters * of_clusters : shape.n_tiles;
    n_count = cluster < whole ? (whole - cluster + of_clusters - 1) / of_clusters : 0;
    finished = n_count;
    const int left = shape.n_tiles - whole;
    if (!kShares || left == 0 || cluster >= left * shape.sharers) return;
    sharer = cluster / left, shared_tile = whole + cluster % left;
    finished += sharer == 0;
    const int begin = k_count * sharer / shape.sharers;
    set_parts(shared_parts, begin, k_count * (sharer + 1) / shape.sharers - begin);
  }
};

struct Weight {
  const void* codes;   // MarlinView::b, ByteWeightView::codes
  const void* scales;  // MarlinView::s, ByteWeightView::scales
};
// A layer as the device reads it.
struct LayerRecord {
  Weight weights[kWeights];
  const __nv_bfloat16 *input_norm, *middle_norm;
  const __nv_bfloat16* bias[3];       // of q, k, v, or null
  const __nv_bfloat16* head_norm[2];  // of q, k, or null
  void *k, *v;                        // the cache, [kv_heads, capacity, head_dim]
  float *k_scales, *v_scales;         // as in KvCache
  float fixed[kProducts];             // scale of a product's input (RowQuant::fixed); bytes only
};
// A mixture's weights[4 .. 6] are not read.
struct MixtureLayerRecord : LayerRecord {
  const __nv_bfloat16* router;  // [experts, hidden]
  const Weight* experts;        // [experts, kExpertWeights]: gate, up, down
};
struct ZeroLayerRecord : LayerRecord {
  const uint32_t* zeros[kWeights];  // MarlinView::z
};

// The argument of the kernel.
struct Job {
  const uint8_t* layers;  // [count] records of the weights' kind
  int count;
  ProductShape product[kProducts];
  int out[kWeights];
  int end_q, end_k, end_gate;  // n tiles of q, of q and k, of gate
  int hidden, heads, kv_heads, inner;
  float eps, head_eps, weight_offset;
  // A mixture.
  int experts, top_k;
  int expert_k_tiles;    // of down
  float slots_of_value;  // 1 / inner
  float per_hidden;      // 1 / hidden
  bool renormalise;
  float route_scale;
  uint64_t* logits;                        // [experts]: f32, above it its stamp
  uint32_t* stream;                        // [hidden]: the residual stream in bf16, below it the low half of its stamp
  uint32_t *qkv_words, *attended_words;    // the same of q, k, v and of what attention makes
  uint32_t* activated_words;               // [top_k * inner]: the same of act(gate) * up
  uint64_t *split_words, *split_ml_words;  // split_o, and m and l of split_ml, with stamps
  uint32_t* launches;                      // how many have ended
  int stamp_stride;                        // stamps of a launch, at most
  // Attention. A head set is up to heads_per_block query heads of one kv head; block i has split i % key_splits of the
  // keys of set i / key_splits.
  int heads_per_block;
  int head_sets, key_splits;  // sets of each kv head
  int split_keys;             // keys that are worth a split of their own
  float score_scale;
  int window;  // positions that a query sees; 0: all
  int64_t capacity;
  const float* inv_freq;
  int rope_pairs;  // pairs of a head that RoPE turns
  float rope_scale, hadamard_scale;
  int hadamard_run;  // values that one Hadamard matrix turns; 0: none
  const int32_t* position;

  __nv_bfloat16* x;               // [hidden]: the residual stream
  __nv_bfloat16 *qkv, *attended;  // [(heads + 2 kv_heads) * head_dim], [heads * head_dim]
  __nv_bfloat16* gate_up;         // [2 * inner]
  float* split_o;      // [kv_heads * head_sets * key_splits, heads_per_block, head_dim]: sums of a split of the keys
  float2* split_ml;    // the same without head_dim: maximum of the scores (base 2), sum of the weights
  uint32_t* counters;  // [2 + kv_heads * head_sets], zero between launches
  float* shared_sums;  // flagged partial sums of a product's shared n tiles, [n tiles, sharers, kKSplits, outputs]

  int stages;       // of a warp's ring
  int in_flight;    // stages that a producer warp has asked for: one, or the most that the kind of weights has
  int input_bytes;  // shared memory for the input of a product
  int work_bytes;   // for the input, what it is scaled by and the warps' sums, or for attention
  // Read with attention apart: the launch runs the products [first_product, end_product), counted through its layers.
  int first_product, end_product;
  DecodePeer peer;  // the GPU that has the other half of the layers, or none
};

// Which weight of a product an n tile belongs to, and which of that weight's n tiles it is.
struct TilePosition {
  int weight, n_tile;
  __device__ __forceinline__ TilePosition(const Job& job, int product, int product_n_tile) : n_tile(product_n_tile) {
    weight = product == kOut ? 3 : 6;
    if (product == kQkv) {
      weight = (n_tile >= job.end_q) + (n_tile >= job.end_k);
      n_tile -= weight == 0 ? 0 : weight == 1 ? job.end_q : job.end_k;
    } else if (product == kGateUp) {
      weight = 4 + (n_tile >= job.end_gate);
      n_tile -= weight == 4 ? 0 : job.end_gate;
    }
  }
};

// A kernel for one kind of weights, one size of heads and one type of cache.
struct Kernel {
  const void* function = nullptr;  // decode_layers_kernel<...>; null where there is none
  int attention_bytes = 0;         // shared memory for attention, or with attention apart for the new token's heads
};
using KernelFinder = Kernel (*)(int64_t head_dim, DType cache, bool whole_step);
// What the host must know of a kind of weights.
struct WeightKind {
  int outputs;                     // of an n tile
  int stage_bytes;                 // of a tile of weights
  int input_bytes, group_bytes;    // of a k tile of the input, and of its LimbGroup
  int record_bytes;                // of LayerRecord or ZeroLayerRecord
  int heads;                       // query heads of a block of attention
  KernelFinder kernel;             // whole step: attention is inside
  KernelFinder sharing = nullptr;  // the same that shares n tiles, or none
};
WeightKind byte_weights_kind();
WeightKind mixture_weights_kind();
WeightKind zero_weights_kind();
Kernel packed_sharing_kernel(int64_t head_dim, DType cache, bool whole_step);
Kernel zeros_sharing_kernel(int64_t head_dim, DType cache, bool whole_step);
Kernel bytes_sharing_kernel(int64_t head_dim, DType cache, bool whole_step);

}  // namespace fewbit::cuda::decode_step
