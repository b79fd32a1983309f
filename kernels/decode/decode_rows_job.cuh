#pragma once
// What the kernel of decode_rows.cuh is told, and how a product is cut.
//
// The blocks of a cluster have a half of k each, and the clusters every so manieth chunk of 64 outputs (gate and up: a
// chunk of each). In a block some warps, a "team", share the k of a chunk, as many as leave a team for each of the
// cluster's chunks.
#include "kernels/decode/decode_layers_product.cuh"
#include "kernels/products/marlin/subnormal_product.cuh"

namespace fewbit::cuda {

inline constexpr int kMostRows = 16, kMostRowsBlocks = 144;
inline constexpr int kRowsProducts = 4;             // of a launch
inline constexpr int kRowsParts = 3;                // linears of a product
inline constexpr int kPieceRowBytes = 2 * kPieceK;  // of a row of x

// How x comes: the block's slice of k, once for all of its warps; to each warp its own part of k, whole; the same run
// by run.
enum class RowsInput : int { slice, own, runs };
enum class RowsEnd : int { store, residual, activated };

struct RowsProduct {
  StepWeight weights[kRowsParts];
  const uint32_t* zeros[kRowsParts];           // MarlinView::z
  const __nv_bfloat16* bias[kRowsParts];       // [out] or null
  __nv_bfloat16* y[kRowsParts];                // [rows, out]; of `store`
  const __nv_bfloat16* x;                      // [rows, pieces * kPieceK]
  const __nv_bfloat16* next_norm;              // [hidden], of `residual`; null: none follows in this launch
  int out[kRowsParts], end_chunk[kRowsParts];  // outputs of each; one past its last chunk, counted over all
  int units, unit;                             // clusters take units of so many chunks: 1, or 2, of gate and of up
  int shift;                                   // the cluster that takes the first unit
  int pieces;                                  // of k
  int member_shift;                            // log2 of the warps of a team
  RowsInput input;
  bool plain;  // x is not kept times kPrescale; not of `slice`
  // outputs are divided by the root mean square of the stream; `slice` only
  bool normed;
  RowsEnd end;
};
// What becomes of q, k and v.
struct RowsAppend {
  __nv_bfloat16* qkv[3];              // [rows, heads or kv_heads, head_dim]: q also as attention reads it
  const __nv_bfloat16* head_norm[2];  // [head_dim], of q, k, or null
  void *k, *v;                        // [rows, kv_heads, capacity, head_dim]
  float *k_scales, *v_scales;         // as KvCache has them
  const int32_t* positions;           // [rows]
  const float* inv_freq;              // [half]
  int64_t capacity;
  int heads, kv_heads, head_dim;
  int half;  // pairs that RoPE turns
  int run;   // of the Hadamard matrix; 0: none
  float attention_scale, run_scale, head_eps, weight_offset;
};
struct RowsStepJob {
  RowsProduct products[kRowsProducts];
  RowsAppend append;
  bool appends;
  int count, rows, hidden, inner;
  float eps, weight_offset;
  __nv_bfloat16* stream;     // [rows, hidden]: the residual
  __nv_bfloat16* weighed;    // [rows, hidden]: the stream times the weight of the norm that reads it, kept times kPrescale
  __nv_bfloat16* activated;  // [rows, inner], kept times kPrescale
  float* squares;            // [blocks, kMostRows]: sums over each block's outputs of the stream
  uint32_t* counters;        // [2], zero between launches
  int slots, more;           // of a warp's ring; warps that have one more
  int x_bytes, x_row, x_own;  // shared memory for x; from row to row of a slice of it; for a warp's own part
};

// The place of a block's cluster among those that a product's units go round.
__device__ __forceinline__ int rows_cluster(const RowsProduct& p) {
  const int cluster = blockIdx.x / kStepSlices - p.shift;
  return cluster < 0 ? cluster + clusters() : cluster;
}
// What a warp does of a product: the chunks team, team + teams, ... of the cluster's `local`, of each the pieces
// [begin, end).
struct RowsShare {
  int local;
  int k0, length;  // pieces of the block; begin and end are relative to k0
  int team, teams, member, begin, end;
  __device__ __forceinline__ RowsShare(const RowsProduct& p, int warp) {
    const int slice = blockIdx.x % kStepSlices, cluster = rows_cluster(p);
    local = cluster < p.units ? (p.units - cluster + clusters() - 1) / clusters() * p.unit : 0;
    k0 = slice * p.pieces / kStepSlices;
    length = (slice + 1) * p.pieces / kStepSlices - k0;
    member = warp & ((1 << p.member_shift) - 1);
    team = warp >> p.member_shift;
    teams = kStepWarps >> p.member_shift;
    begin = length * member >> p.member_shift;
    end = length * (member + 1) >> p.member_shift;
  }
};
// Which linear and which chunk of it the cluster's chunk `local` is.
struct RowsSeat {
  int weight, chunk;
  __device__ __forceinline__ RowsSeat(const RowsProduct& p, int local) {
    const int cluster = rows_cluster(p);
    if (p.unit == 2) {
      weight = local % 2;
      chunk = cluster + local / 2 * clusters();
    } else {
      chunk = cluster + local * clusters();
      weight = 0;
      while (chunk >= p.end_chunk[weight]) ++weight;
      if (weight > 0) chunk -= p.end_chunk[weight - 1];
    }
  }
};

}  // namespace fewbit::cuda
