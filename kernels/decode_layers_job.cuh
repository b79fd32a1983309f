#pragma once
// What the kernel of decode_layers_cuda.cu is told, and how a product is cut among the blocks of the grid.
//
// A product is cut in pieces of 64 outputs (a "chunk", a column of the Marlin layout) times 128 values of k, a group of scales. The blocks of
// a cluster have a slice of k each, and the clusters every so manieth chunk: neighbours in memory are read at the same time
// by neighbouring blocks, and a block stays in the few pages of its rows. The blocks of a cluster send each other their sums;
// each finishes its share of the outputs of every chunk.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "src/core/marlin_layout.h"

namespace fewbit::cuda {

inline constexpr int kStepWarps = 8;  // that compute; each has another one that feeds it
inline constexpr int kStepThreads = 32 * kStepWarps, kAllStepThreads = 2 * kStepThreads;
inline constexpr int kPieceTiles = 8, kPieceK = kPieceTiles * marlin::kTileK;
inline constexpr int kTileBytes4 = marlin::kTileK * marlin::kTileN / 2;             // of 4-bit words
inline constexpr int kPieceBytes = kPieceTiles * kTileBytes4 + marlin::kTileN * 2;  // words, then a row of scales
inline constexpr int kMostSlots = 5, kLeastSlots = 3;                               // pieces a warp has room for
inline constexpr int kMostUnderWay = 2;                                             // pieces that a feeding warp has asked for
inline constexpr int kStepSlices = 2;                                               // blocks of a cluster
inline constexpr int kOwnOutputs = marlin::kTileN / kStepSlices;                    // of a chunk, finished by one block
inline constexpr int kRoundsTogether = 8;                                           // chunks whose sums are sent at a time
inline constexpr int kMostOwnRounds = 8;                                            // chunks of the hidden state of a cluster
inline constexpr int kHeadsTogether = 4;                                            // query heads of a block of attention
inline constexpr int kStepWeights = 7;                                              // q k v o gate up down

enum StepProduct : int { kQkv, kOut, kGateUp, kDown, kStepProducts };

struct StepCut {
  int chunks, pieces;  // runs of 64 outputs, over all weights of the product; pieces of k in each
};
// What a block has of a product.
struct StepPart {
  int k0, length;      // pieces of k
  int chunk0, rounds;  // chunks chunk0, chunk0 + clusters, ...
  __device__ void set(const StepCut& cut, int slice, int cluster, int clusters) {
    k0 = slice * cut.pieces / kStepSlices;
    length = (slice + 1) * cut.pieces / kStepSlices - k0;
    chunk0 = cluster;
    rounds = cluster < cut.chunks ? (cut.chunks - cluster + clusters - 1) / clusters : 0;
  }
  // Pieces of a warp, relative to k0; of every chunk the same.
  __device__ int warp_begin(int warp) const { return length * warp / kStepWarps; }
};

struct StepWeight {
  const uint32_t* words;  // MarlinView::b
  const __half* scales;   // MarlinView::s
};
struct StepLayer {
  StepWeight weights[kStepWeights];
  const __nv_bfloat16 *input_norm, *middle_norm;
  const __nv_bfloat16* bias[3];       // of q, k, v, or null
  const __nv_bfloat16* head_norm[2];  // of q, k, or null
  void *k, *v;                        // [kv_heads, capacity, head_dim]
  float *k_scales, *v_scales;         // as KvCache has them
};
struct StepJob {
  const StepLayer* layers;
  int count;
  StepCut cut[kStepProducts];
  int out[kStepWeights];
  int end_q, end_k, end_gate;  // chunks of q, of q and k, of gate
  int hidden, heads, kv_heads, inner;
  float eps, head_eps, weight_offset;
  // Attention: block i has split i % splits of the i / splits-th set of up to kHeadsTogether query heads of one kv head.
  int sets, splits;  // sets of a kv head
  float scale;
  int visible;  // positions that a query sees; 0: all
  int64_t capacity;
  const float* inv_freq;
  int half;  // pairs that RoPE turns
  float attention_scale, run_scale;
  int run;  // of the Hadamard matrix; 0: none
  const int32_t* position;

  __nv_bfloat16* x;                // [hidden]: the residual stream
  __nv_bfloat16 *qkv, *attended;   // [(heads + 2 kv_heads) * head_dim], [heads * head_dim]
  __nv_bfloat16* gate_up;          // [2 * inner]
  float* o_parts;                  // [kv_heads * sets * splits, kHeadsTogether, head_dim]
  float2* ml_parts;                // the same without head_dim: maximum (base 2), sum
  uint32_t* counters;              // [2 + kv_heads * sets], zero between launches
  int slots;                       // of a warp's ring
  int under_way;                   // pieces that a feeding warp has asked for, up to kMostUnderWay
  int input_bytes;                 // shared memory for the input of a product
  int work_bytes;                  // for input, its sums and the warps' sums, or for attention
};

}  // namespace fewbit::cuda
