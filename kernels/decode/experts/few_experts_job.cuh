#pragma once
// What the kernels of few_experts_kernels.cuh are given: experts' weights by pointers, and which tokens go to whom. And
// the activation between their products.
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/model/gated_act.cuh"

namespace fewbit::cuda::few_experts_step {

inline constexpr int kThreads = 256;  // of a block that multiplies nothing

// A linear of one expert. An i64 each, in a table on the device.
struct Pointers {
  const uint8_t* w;
  const void* scales;         // f32 [out] of 8-bit codes, f16 [G, out] of packed words, else null
  const uint32_t* zeros;      // of packed words, or null
  const __nv_bfloat16* bias;  // [out] or null
};
// Linears that the experts have alike.
struct Matrix {
  const Pointers* experts;  // [experts]
  int in, out;
  int group_tiles;  // of packed words: k-tiles of a group, 0 where one group spans the row
  int stages;       // spans of k that a warp has in shared memory
};

// A pair is a token and one of its experts: pair t * top_k + i of ids [tokens, top_k]. Pairs have places in the order
// of (expert, pair). A slot is an expert that has pairs; `begin` of the slots behind the last one is `count`.
// With one token nothing is put in order: its pairs are the slots, as they stand in `ids`.
struct Pairs {
  int count, top_k, slots;
  const int32_t* ids;  // [top_k] of one token; else null
  int* active;         // [1] slots with pairs
  int* expert;         // [slots]
  int* begin;          // [slots + 1] places
  int* pair;           // [count] by place
  int* place;          // [tokens, top_k]: of each token, its places in the order of the experts' numbers
};

// x of a product, as the form of its weights wants it, and a scale for each row of codes.
struct Rows {
  const void* x;
  const float* scales;
};

// act(gate(x)) * up(x) -> act [count, width] by place.
struct WideJob {
  Pairs pairs;
  Matrix gate, up;  // gate.experts == null: act(up) * up
  Rows rows;        // [tokens], or [count] by pair where weigh_inputs
  bool by_pair;
  ActKind act;
  SwigluClamp swiglu;
  __nv_bfloat16* to;
  int table_lines;  // of 128 bytes: all experts' pointers, from up.experts on
};
// The weighted sum of down(act).
struct DownJob {
  Pairs pairs;
  Matrix down;
  Rows rows;            // [count] by place
  const float* shares;  // [tokens, top_k]; null: ones
  __nv_bfloat16* y;     // [count, hidden] by place: what the experts answer
  __nv_bfloat16* out;   // [tokens, hidden]
  uint32_t* arrived;    // [tiles] zeroes, left as such
  int tokens;
  bool add;  // to out
};

// A value of clamped_swiglu() where there is a limit, else of gated_act().
__device__ __forceinline__ float gated(float g, float u, ActKind act, const SwigluClamp& clamp) {
  if (clamp.limit > 0) {
    g = fminf(g, clamp.limit), u = fminf(fmaxf(u, -clamp.limit), clamp.limit);
    return (u + clamp.shift) * g / (1.f + expf(-clamp.slope * g));
  }
  switch (act) {
    case ActKind::silu:
      return activate<ActKind::silu>(g) * u;
    case ActKind::gelu_tanh:
      return activate<ActKind::gelu_tanh>(g) * u;
    case ActKind::relu:
      return activate<ActKind::relu>(g) * u;
    case ActKind::none:
      break;
  }
  return g * u;
}

}  // namespace fewbit::cuda::few_experts_step
