#pragma once
// What the kernel of decode_layers_kernel.cuh is told, and how a product is cut among the blocks of the grid.
//
// A product is cut in pieces of some outputs (a "chunk": 64, a column of the Marlin layout, or 32 rows of bytes) times
// 128 values of k (in the Marlin layout a group of scales). The blocks of a cluster have a slice of k each, and the
// clusters every so manieth chunk: neighbours in memory are read at the same time by neighbouring blocks, and a block
// stays in the few pages of its rows. The blocks of a cluster send each other their sums; each finishes its share of
// the outputs of every chunk.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "src/core/dtype.h"
#include "src/core/marlin_layout.h"

namespace fewbit::cuda {

inline constexpr int kStepWarps = 8;  // that compute; each has another one that feeds it
inline constexpr int kStepThreads = 32 * kStepWarps, kAllStepThreads = 2 * kStepThreads;
// Registers of a computing and of a feeding thread: no more in all than the launch got.
inline constexpr int kComputeRegisters = 200, kFeedRegisters = 48;
inline constexpr int kPieceTiles = 8, kPieceK = kPieceTiles * marlin::kTileK;
inline constexpr int kTileBytes4 = marlin::kTileK * marlin::kTileN / 2;  // of 4-bit words
// Words, a row of scales and one of zero points; whole lines.
constexpr int packed_piece_bytes(bool zeros) {
  return (kPieceTiles * kTileBytes4 + marlin::kTileN * 2 + (zeros ? marlin::kTileN / 2 : 0) + 127) / 128 * 128;
}
inline constexpr int kMostSlots = 5, kLeastSlots = 3;  // pieces a warp has room for
// pieces that a feeding warp has asked for
inline constexpr int kMostUnderWay = 2;
inline constexpr int kStepSlices = 2;  // blocks of a cluster
// of chunks whose sums are sent at a time
inline constexpr int kOutputsTogether = 512;
inline constexpr int kMostOwnOutputs = 256;  // of the hidden state, of a block
// hidden values where weights are bytes
inline constexpr int kMostNormedBytes = 8192;
// query heads of a block of attention
inline constexpr int kHeadsTogether = 4;
inline constexpr int kStepWeights = 7;  // q k v o gate up down

enum StepProduct : int { kQkv, kOut, kGateUp, kDown, kStepProducts };

struct StepCut {
  int chunks, pieces;  // runs of outputs, over all weights of the product; pieces of k in each
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
  const void* codes;   // MarlinView::b, ByteWeightView::codes
  const void* scales;  // MarlinView::s, ByteWeightView::scales
};
struct StepLayer {
  StepWeight weights[kStepWeights];
  const __nv_bfloat16 *input_norm, *middle_norm;
  const __nv_bfloat16* bias[3];       // of q, k, v, or null
  const __nv_bfloat16* head_norm[2];  // of q, k, or null
  void *k, *v;                        // [kv_heads, capacity, head_dim]
  float *k_scales, *v_scales;         // as KvCache has them
  float fixed[kStepProducts];         // scale of a product's input (RowQuant::fixed); bytes only
};
struct StepZeroLayer : StepLayer {
  const uint32_t* zeros[kStepWeights];  // MarlinView::z
};
struct StepJob {
  const uint8_t* layers;  // [count] of the Layer of the kind of weights
  int count;
  StepCut cut[kStepProducts];
  int out[kStepWeights];
  int end_q, end_k, end_gate;  // chunks of q, of q and k, of gate
  int hidden, heads, kv_heads, inner;
  float eps, head_eps, weight_offset;
  // Attention: block i has split i % splits of the i / splits-th set of up to kHeadsTogether query heads of one kv
  // head.
  int sets, splits;  // sets of a kv head
  float scale;
  int visible;  // positions that a query sees; 0: all
  int64_t capacity;
  const float* inv_freq;
  int half;  // pairs that RoPE turns
  float attention_scale, run_scale;
  int run;  // of the Hadamard matrix; 0: none
  const int32_t* position;

  __nv_bfloat16* x;               // [hidden]: the residual stream
  __nv_bfloat16 *qkv, *attended;  // [(heads + 2 kv_heads) * head_dim], [heads * head_dim]
  __nv_bfloat16* gate_up;         // [2 * inner]
  float* o_parts;                 // [kv_heads * sets * splits, kHeadsTogether, head_dim]
  float2* ml_parts;               // the same without head_dim: maximum (base 2), sum
  uint32_t* counters;             // [2 + kv_heads * sets], zero between launches
  int slots;                      // of a warp's ring
  int under_way;                  // pieces that a feeding warp has asked for, up to kMostUnderWay
  int input_bytes;                // shared memory for the input of a product
  int work_bytes;                 // for input, its sums and the warps' sums, or for attention
  // Read where attention is outside: the launch has the products from `first` on, before `end`, counted through its
  // layers.
  int first, end;
};

// Which weight of a product a chunk belongs to, and which chunk of it that is.
struct StepSeat {
  int weight, chunk;
  __device__ __forceinline__ StepSeat(const StepJob& job, int product, int of_product) : chunk(of_product) {
    weight = product == kOut ? 3 : 6;
    if (product == kQkv) {
      weight = (chunk >= job.end_q) + (chunk >= job.end_k);
      chunk -= weight == 0 ? 0 : weight == 1 ? job.end_q : job.end_k;
    } else if (product == kGateUp) {
      weight = 4 + (chunk >= job.end_gate);
      chunk -= weight == 4 ? 0 : job.end_gate;
    }
  }
};

// A kernel of one kind of weights, for heads of one size and one type of cache.
struct StepKernel {
  const void* function = nullptr;  // decode_layers_kernel<...>; null where there is none
  int attention_bytes = 0;         // of shared memory; where attention is outside, what makes its rows
};
// What the host must know of a kind of weights.
struct StepKind {
  int outputs;                                                      // of a chunk
  int piece_bytes;                                                  // in a ring
  int input_bytes, note_bytes;                                      // of a piece of the input in shared memory
  int layer_bytes;                                                  // of StepLayer, or what has more
  StepKernel (*kernel)(int64_t head_dim, DType cache, bool whole);  // whole: attention is inside
};
StepKind byte_step_kind();
StepKind zero_step_kind();

}  // namespace fewbit::cuda
