#pragma once
// The scale search of one group by one warp. Every lane owns up to K candidates and walks the weights, which stand in
// shared memory, in order: no reduction but the last one over candidates, and the sums of the CPU half to the bit.
#include "kernels/grids/scale_search.h"

namespace fewbit::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Least and largest of the lanes' values, both forced to hold 0 by their start. Exact, so order does not matter.
__device__ __forceinline__ GroupRange warp_range(GroupRange r) {
  for (int lane = 16; lane > 0; lane /= 2) {
    r.min = fminf(r.min, __shfl_xor_sync(kAllLanes, r.min, lane));
    r.max = fmaxf(r.max, __shfl_xor_sync(kAllLanes, r.max, lane));
  }
  return r;
}

// K = candidates / 32, rounded up.
template <int K>
struct LaneSearch {
  float scale[K], inverse[K], lo[K], hi[K];
  double total[K];

  __device__ __forceinline__ void start(const ScaleSearch& search, const GroupRange& range, int candidates) {
    const int max_code = (1 << search.bits) - 1;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int c = k * 32 + static_cast<int>(threadIdx.x % 32);
      const GridChoice choice = scale_candidate(search, range, c);
      scale[k] = choice.scale;
      inverse[k] = 1.f / choice.scale;
      lo[k] = static_cast<float>(-choice.zero);
      hi[k] = static_cast<float>(max_code - choice.zero);
      total[k] = c < candidates ? 0.0 : static_cast<double>(INFINITY);
    }
  }

  // One run of at most kSearchRun weights in shared memory; h == nullptr: all ones.
  __device__ __forceinline__ void add_run(const float* w, const float* h, int n) {
    float run[K] = {};
    for (int i = 0; i < n; ++i) {
      const float wi = w[i], hi_i = h ? h[i] : 1.f;
#pragma unroll
      for (int k = 0; k < K; ++k) run[k] = add_rn(run[k], search_error(wi, hi_i, scale[k], inverse[k], lo[k], hi[k]));
    }
#pragma unroll
    for (int k = 0; k < K; ++k) total[k] += run[k];
  }

  // The candidate with the least error, the earlier one at ties; the same on every lane.
  __device__ __forceinline__ GridChoice best() const {
    double error = total[0];
    int at = static_cast<int>(threadIdx.x % 32);
    float s = scale[0], zero = -lo[0];
#pragma unroll
    for (int k = 1; k < K; ++k)
      if (total[k] < error) {
        error = total[k];
        at = k * 32 + static_cast<int>(threadIdx.x % 32);
        s = scale[k];
        zero = -lo[k];
      }
    for (int lane = 16; lane > 0; lane /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, error, lane);
      const int other_at = __shfl_xor_sync(kAllLanes, at, lane);
      const float other_s = __shfl_xor_sync(kAllLanes, s, lane), other_zero = __shfl_xor_sync(kAllLanes, zero, lane);
      if (other < error || (other == error && other_at < at)) {
        error = other;
        at = other_at;
        s = other_s;
        zero = other_zero;
      }
    }
    return {s, static_cast<int>(zero)};
  }
};

// Calls f(integral_constant K) for a number of candidates.
template <class F>
void dispatch_candidates(int candidates, F&& f) {
  static_assert(kMaxCandidates == 96, "one case for every K");
  FEWBIT_ASSERT(candidates >= 1 && candidates <= kMaxCandidates);
  switch ((candidates + 31) / 32) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    default:
      return f(std::integral_constant<int, 3>{});
  }
}

// Rows of weights with a stride, and where their grids go.
struct ScaleTask {
  const float* w = nullptr;  // [rows, cols], w_ld apart
  const float* h = nullptr;  // [cols] or null
  float* scales = nullptr;   // [rows, groups], grid_ld apart
  uint8_t* zeros = nullptr;  // the same; null when symmetric
  int64_t rows = 0, cols = 0, w_ld = 0, grid_ld = 0, group = 0;
  ScaleSearch search{};
};
void launch_choose_scales(cudaStream_t stream, const ScaleTask& task);  // kernels/quantize/choose_scales_cuda.cu

}  // namespace fewbit::cuda
