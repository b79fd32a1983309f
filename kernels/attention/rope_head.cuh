#pragma once
// One head of a new token on its way to the cache or to attention, by a warp: its norm, RoPE, the Hadamard matrix.
#include <cmath>

#include "kernels/attention/rope_append.h"
#include "kernels/model/hadamard.cuh"
#include "kernels/model/hadamard.h"
#include "kernels/model/norm.cuh"
#include "kernels/model/rope.cuh"

namespace fewbit::cuda {

struct HeadSizes {
  int d, half;
  float attention_scale;
  int run;  // values that one Hadamard matrix turns; 0: none
  bool turn_values;
  float run_scale;  // 1 / sqrt(run)
};

// The norm of the heads of q or of k, by vectors where rms_norm() would take them.
template <class T>
struct HeadNorm {
  const T* weight;  // or null
  bool vectors;
};
template <class T>
struct Norms {
  HeadNorm<T> q, k;
  float eps, offset;
};
template <class T>
HeadNorm<T> norm_of(ConstTensorView weight, ConstTensorView heads, int64_t d) {
  if (!weight.data) return {nullptr, false};
  FEWBIT_ASSERT(weight.dtype == heads.dtype && weight.numel() == d);
  return {weight.as<T>(), aligned16(heads.as<T>(), d) && aligned16(weight.as<T>())};
}

template <class T>
Norms<T> norms_of(const HeadNorms& norms, ConstTensorView q, ConstTensorView k, int64_t d) {
  return {norm_of<T>(norms.q, q, d), norm_of<T>(norms.k, k, d), norms.eps, norms.offset};
}
inline HeadSizes head_sizes(const RopeTable& rope, int64_t d) {
  return {.d = static_cast<int>(d),
          .half = static_cast<int>(rope.inv_freq.numel()),
          .attention_scale = rope.attention_scale,
          .run = rope.hadamard ? static_cast<int>(hadamard_run(d)) : 0,
          .turn_values = rope.turn_values,
          .run_scale = 1 / std::sqrt(static_cast<float>(hadamard_run(d)))};
}

// Values of the table of cosines and sines, with those that bring what follows to a multiple of 16 bytes.
__host__ __device__ constexpr int table_size(int half) { return (2 * half + 3) / 4 * 4; }

// A head at `from`, normed where `norm` has weights, turned by the angles of `table` and by the matrix where asked.
// Returns where it then is: `to`, or, without any of these, `from`. `between`: room for d values, which may be `to`;
// `wide`: for d floats, where d is none of those that the matrix takes in registers.
template <class T>
__device__ __forceinline__ const T* prepare_head(const T* from, T* between, T* to, float* wide, const float* table,
                                                 const HeadNorm<T>& norm, const Norms<T>& norms, const HeadSizes& s,
                                                 bool of_v) {
  const int lane = threadIdx.x % 32;
  const bool by_matrix = s.run > 0 && (!of_v || s.turn_values);
  if (norm.weight) {
    if (norm.vectors)
      norm_row<T, kVec16<T>>(from, norm.weight, norms.eps, norms.offset, between, s.d, lane);
    else
      norm_row<T, 1>(from, norm.weight, norms.eps, norms.offset, between, s.d, lane);
    __syncwarp();
    from = between;
  }
  if (!of_v) {
    T* turned = by_matrix ? between : to;
    turn_head(from, turned, table, s.half, lane);
    if (turned != from)
      for (int i = 2 * s.half + lane; i < s.d; i += 32) turned[i] = from[i];
    __syncwarp();
    from = turned;
  }
  if (by_matrix) {
    hadamard_head(from, to, wide, s.d, s.run, s.run_scale, lane);
    __syncwarp();
    from = to;
  }
  return from;
}

}  // namespace fewbit::cuda
