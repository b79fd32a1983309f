#pragma once
// What the host tells the kernel of decode_layers_kernel.cuh. How a product is divided among its blocks is in
// decode_layers_tiles.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/decode/decode_layers_tiles.h"
#include "kernels/decode/decode_peer.h"
#include "src/core/dtype.h"
#include "src/core/marlin_layout.h"

namespace fewbit::cuda::decode_step {

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
inline constexpr int kExchangeOutputs = 512;  // outputs whose sums a cluster exchanges at a time: two for each consumer
inline constexpr int kMaxOwnOutputs = 256;    // values of the residual stream that a block can keep
inline constexpr int kMaxByteHidden = 8192;   // hidden values where weights are bytes: what the norm's registers hold
inline constexpr int kHeadsPerBlock = 4;      // query heads of a block of attention; of mixtures, whose steps are a
inline constexpr int kMixtureHeadsPerBlock = 2;  // chain of waits, fewer, so that attention takes half as long
inline constexpr int kWeights = 7;               // q k v o gate up down
inline constexpr int kExpertWeights = 3, kMaxTopK = 16, kMaxExperts = 512;
inline constexpr int kMaxRoutedHidden = 4096;  // hidden values of a mixture: what the routing holds in registers

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
struct Job : LaunchSpan {
  const uint8_t* layers;  // [count] records of the weights' kind
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
  int head_sets, key_splits;   // sets of each kv head
  int split_keys, whole_keys;  // keys that are worth a split of their own; as many as one block takes alone
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
  int static_bytes;                // static shared memory of a block, at most
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
