// Variables of learned rounding: a warp per group of a row, a lane every 32nd weight of it; bound by memory. The only
// sum, the gradient of a group's factor, is a butterfly, so its order is fixed.
#include "kernels/device/reduce.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/learned_group.h"

namespace fewbit::cuda {
namespace {

constexpr int kWarps = 8;

// Calls f(at, group, lane) in every warp that has a group.
template <class F>
__global__ void __launch_bounds__(kWarps * 32) for_groups_kernel(const LearnedArrays v, const F f) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (at < v.groups()) f(v, at, v(at), static_cast<int>(threadIdx.x % 32));
}

template <class F>
void for_groups(Exec& ex, const LearnedGrid& grid, const F& f) {
  const LearnedArrays v(grid);
  const auto blocks = static_cast<unsigned>((v.groups() + kWarps - 1) / kWarps);
  if (blocks == 0) return;
  for_groups_kernel<<<blocks, kWarps * 32, 0, ex.cuda_state().stream>>>(v, f);
  FEWBIT_CUDA_LAUNCHED();
}

struct Start {
  const uint8_t* codes;
  __device__ void operator()(const LearnedArrays& v, int64_t at, const LearnedGroup& g, int lane) const {
    for (int64_t i = g.first + lane; i < g.first + g.count; i += 32) v.level[i] = static_cast<float>(codes[i] - g.zero);
    if (lane == 0) v.factor[at] = 1, v.mean[at] = v.square[at] = 0;
  }
};

struct Values {
  float* w;
  __device__ void operator()(const LearnedArrays& v, int64_t, const LearnedGroup& g, int lane) const {
    for (int64_t i = g.first + lane; i < g.first + g.count; i += 32) w[i] = g.rounded(v.level[i]) * g.stored;
  }
};

struct Codes {
  uint8_t* codes;
  float* scales;
  __device__ void operator()(const LearnedArrays& v, int64_t at, const LearnedGroup& g, int lane) const {
    for (int64_t i = g.first + lane; i < g.first + g.count; i += 32) codes[i] = g.code(v.level[i]);
    if (lane == 0) scales[at] = g.stored;
  }
};

struct Step {
  const float* grad;
  LearnedStep step;
  __device__ void operator()(const LearnedArrays& v, int64_t at, const LearnedGroup& g, int lane) const {
    float slope = 0;
    for (int64_t i = g.first + lane; i < g.first + g.count; i += 32) {
      const float d = grad[i];
      slope = fmaf(d, g.rounded(v.level[i]), slope);
      v.move_level(i, d, step.level_rate, g);
    }
    slope = warp_sum(slope);
    if (lane == 0) v.move_factor(at, slope * g.scale, step);
  }
};

}  // namespace

void learned_start(Exec& ex, ConstTensorView codes, const LearnedGrid& grid) {
  FEWBIT_ASSERT(codes.shape == grid.level.shape);
  for_groups(ex, grid, Start{codes.as<uint8_t>()});
}

void learned_values(Exec& ex, const LearnedGrid& grid, TensorView w) {
  FEWBIT_ASSERT(w.shape == grid.level.shape);
  for_groups(ex, grid, Values{w.as<float>()});
}

void learned_codes(Exec& ex, const LearnedGrid& grid, TensorView codes, TensorView scales) {
  FEWBIT_ASSERT(codes.shape == grid.level.shape && scales.shape == grid.factor.shape);
  for_groups(ex, grid, Codes{codes.as<uint8_t>(), scales.as<float>()});
}

void learned_step(Exec& ex, ConstTensorView grad, const LearnedStep& step, const LearnedGrid& grid) {
  FEWBIT_ASSERT(grad.shape == grid.level.shape && step.count >= 1);
  for_groups(ex, grid, Step{grad.as<float>(), step});
}

}  // namespace fewbit::cuda
