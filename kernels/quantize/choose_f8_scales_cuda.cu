// Scales on the E4M3 grid. A warp takes a group of a row: once for its largest magnitude, once for the errors, with two
// candidates a lane, every lane walking the weights in order, so that the sums are the CPU's to the bit. A thread then
// takes a block's rows in order. The work is some twenty instructions per weight and candidate, far above the memory
// traffic.
#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/f8_chunks.h"

namespace fewbit::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPerLane = kF8Candidates / 32;

struct Chunk {
  const float* w;  // [rows, in]
  const float* h;  // [in] or null
  float* most;     // [rows, groups]
  float* tops;     // [blocks, groups]
  double* errors;  // [rows, groups, kF8Candidates] or null: no search
  float* scales;   // [blocks, groups]
  int64_t rows, in, groups, group, out_group, blocks;
  DType dtype;
};

__global__ void __launch_bounds__(kWarps * 32) most_kernel(Chunk t) {
  const int lane = threadIdx.x % 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= t.rows * t.groups) return;
  const int64_t row = task / t.groups, first = task % t.groups * t.group;
  const int64_t end = min(first + t.group, t.in);
  float most = 0;
  for (int64_t i = first + lane; i < end; i += 32) most = fmaxf(most, fabsf(t.w[row * t.in + i]));
  most = warp_max(most);
  if (lane == 0) t.most[task] = most;
}

__global__ void tops_kernel(Chunk t) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (task >= t.blocks * t.groups) return;
  const int64_t block = task / t.groups, g = task % t.groups;
  const int64_t end = min((block + 1) * t.out_group, t.rows);
  float top = 0;
  for (int64_t r = block * t.out_group; r < end; ++r) top = fmaxf(top, t.most[r * t.groups + g]);
  t.tops[task] = top;
}

__global__ void __launch_bounds__(kWarps * 32) errors_kernel(Chunk t) {
  const int lane = threadIdx.x % 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= t.rows * t.groups) return;
  const int64_t row = task / t.groups, g = task % t.groups, first = g * t.group;
  const int64_t end = min(first + t.group, t.in);
  const float top = t.tops[row / t.out_group * t.groups + g];
  float scale[kPerLane], inverse[kPerLane];
  double total[kPerLane] = {};
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    scale[k] = f8_candidate(top, k * 32 + lane, t.dtype);
    inverse[k] = 1.f / scale[k];
  }
  for (int64_t begin = first; begin < end; begin += kSearchRun) {
    float run[kPerLane] = {};
    const int64_t stop = min(begin + kSearchRun, end);
    for (int64_t i = begin; i < stop; ++i) {
      const float w = t.w[row * t.in + i], h = t.h ? t.h[i] : 1.f;
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) run[k] = add_rn(run[k], f8_error(w, h, scale[k], inverse[k]));
    }
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) total[k] += run[k];
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) t.errors[task * kF8Candidates + k * 32 + lane] = total[k];
}

// A warp per scale: each lane adds its candidates over the block's rows, the first of the least wins.
__global__ void __launch_bounds__(kWarps * 32) choose_kernel(Chunk t) {
  const int lane = threadIdx.x % 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= t.blocks * t.groups) return;
  const int64_t block = task / t.groups, g = task % t.groups;
  const int64_t end = min((block + 1) * t.out_group, t.rows);
  int best = kF8Plain;
  if (t.errors) {
    double least = INFINITY;
    best = kF8Candidates;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      double total = 0;
      for (int64_t r = block * t.out_group; r < end; ++r)
        total += t.errors[(r * t.groups + g) * kF8Candidates + k * 32 + lane];
      if (total < least) {
        least = total;
        best = k * 32 + lane;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, least, step);
      const int at = __shfl_xor_sync(0xffffffffu, best, step);
      if (other < least || (other == least && at < best)) {
        least = other;
        best = at;
      }
    }
    if (best >= kF8Candidates) best = 0;  // nothing is less than infinity: as min_element does
  }
  if (lane == 0) t.scales[task] = f8_candidate(t.tops[task], best, t.dtype);
}

unsigned blocks_for(int64_t tasks, int64_t per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

}  // namespace

void choose_f8_scales(Exec& ex, const F8ScaleArgs& a, TensorView scales) {
  const F8Chunks all(a, scales);
  const cudaStream_t stream = ex.cuda_state().stream;
  for (int64_t first = 0; first < all.rows; first += all.chunk) {
    const int64_t rows = std::min(all.chunk, all.rows - first), blocks = (rows + a.out_group - 1) / a.out_group;
    const Tensor most = ex.alloc(DType::f32, {rows, all.groups}), tops = ex.alloc(DType::f32, {blocks, all.groups});
    const Tensor errors = a.search ? ex.alloc(DType::f64, {rows, all.groups, kF8Candidates}) : Tensor();
    const Chunk t{.w = a.w.as<float>() + first * a.w.cols(),
                  .h = a.h.data ? a.h.as<float>() : nullptr,
                  .most = most.as<float>(),
                  .tops = tops.as<float>(),
                  .errors = errors ? errors.as<double>() : nullptr,
                  .scales = scales.as<float>() + first / a.out_group * all.groups,
                  .rows = rows,
                  .in = a.w.cols(),
                  .groups = all.groups,
                  .group = a.group,
                  .out_group = a.out_group,
                  .blocks = blocks,
                  .dtype = a.scale_dtype};
    most_kernel<<<blocks_for(rows * all.groups, kWarps), kWarps * 32, 0, stream>>>(t);
    FEWBIT_CUDA_LAUNCHED();
    tops_kernel<<<blocks_for(blocks * all.groups, 256), 256, 0, stream>>>(t);
    FEWBIT_CUDA_LAUNCHED();
    if (a.search) {
      errors_kernel<<<blocks_for(rows * all.groups, kWarps), kWarps * 32, 0, stream>>>(t);
      FEWBIT_CUDA_LAUNCHED();
    }
    choose_kernel<<<blocks_for(blocks * all.groups, kWarps), kWarps * 32, 0, stream>>>(t);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace fewbit::cuda
