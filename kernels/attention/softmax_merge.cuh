#pragma once
// Merging the softmax results of splits of a row's keys (Flash-Decoding: Dao, Haziza, Massa, Sizov, 2023). Split i has
// left the reference m_i that its weights 2^(score - m_i) are relative to, their sum l_i, and O_i, the sum of weight
// times value. Relative to m, the largest of the references, split i counts with the weight 2^(m_i - m):
//   l = sum_i 2^(m_i - m) l_i    O = sum_i 2^(m_i - m) O_i    result = O / l
#include "kernels/device/exponential.cuh"

namespace fewbit::cuda {

// The reference of a row that has seen no key. It is finite, so that the difference of two of them is no NaN; the
// weight of such a split beside any other is zero, and so is its l.
inline constexpr float kNoKeys = -1e38f;

// The largest of the references; the m of a split is its ml.x.
template <int kSplits>
__device__ __forceinline__ float merged_reference(const float2 (&ml)[kSplits]) {
  float m = ml[0].x;
#pragma unroll
  for (int i = 1; i < kSplits; ++i) m = fmaxf(m, ml[i].x);
  return m;
}

// The weights of the splits relative to m; adds what the splits' sums are worth to l, in the order of the splits. m is
// finite; a split that does not exist has {-infinity, 0}.
template <int kSplits>
__device__ __forceinline__ void merge_weights(float (&weight)[kSplits], const float2 (&ml)[kSplits], float m,
                                              float& l) {
#pragma unroll
  for (int i = 0; i < kSplits; ++i) {
    weight[i] = exp2_fast(ml[i].x - m);
    l += weight[i] * ml[i].y;
  }
}

// The sum of a row's weights with that of its head's sink, which has no value; sinks: null where there are none.
__device__ __forceinline__ float with_sink(float l, float m, const float* sinks, int head) {
  return sinks ? l + exp2_fast(fmaf(sinks[head], kLog2e, -m)) : l;
}

}  // namespace fewbit::cuda
