// Scale search: a warp has a group of a row. The group passes through shared memory in runs of 128 weights, read once
// for its range and once for the search; each lane judges its own candidates (kernels/quantize/grid_search.cuh). The
// work is some ten instructions per weight and candidate, far above the memory traffic.
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/choose_scales.h"
#include "kernels/quantize/grid_search.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kWarps = 8;

template <int K>  // candidates per lane
__global__ void __launch_bounds__(kWarps * 32) choose_scales_kernel(ScaleTask t, int64_t groups, int candidates) {
  __shared__ float staged[kWarps][2][kSearchRun];  // weights and importance of a run
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (task >= t.rows * groups) return;
  const int64_t row = task / groups, g = task % groups, first = g * t.group;
  const int64_t count = min(t.group, t.cols - first);
  const float* w = t.w + row * t.w_ld + first;
  const float* h = t.h ? t.h + first : nullptr;
  GroupRange range;
  for (int64_t i = lane; i < count; i += 32) {
    range.min = fminf(range.min, w[i]);
    range.max = fmaxf(range.max, w[i]);
  }
  LaneSearch<K> search;
  search.start(t.search, warp_range(range), candidates);
  float *ws = staged[warp][0], *hs = staged[warp][1];
  for (int64_t begin = 0; candidates > 1 && begin < count; begin += kSearchRun) {
    const int n = static_cast<int>(min(kSearchRun, count - begin));
    for (int i = lane; i < n; i += 32) {
      ws[i] = w[begin + i];
      if (h) hs[i] = h[begin + i];
    }
    __syncwarp();
    search.add_run(ws, h ? hs : nullptr, n);
    __syncwarp();
  }
  const GridChoice best = search.best();
  if (lane != 0) return;
  t.scales[row * t.grid_ld + g] = best.scale;
  if (t.zeros) t.zeros[row * t.grid_ld + g] = static_cast<uint8_t>(best.zero);
}

}  // namespace

void launch_choose_scales(cudaStream_t stream, const ScaleTask& t) {
  const int64_t groups = (t.cols + t.group - 1) / t.group;
  if (t.rows * groups == 0) return;
  const int candidates = scale_candidates(t.search);
  const unsigned blocks = static_cast<unsigned>((t.rows * groups + kWarps - 1) / kWarps);
  dispatch_candidates(candidates, [&](auto k) {
    choose_scales_kernel<decltype(k)::value><<<blocks, kWarps * 32, 0, stream>>>(t, groups, candidates);
  });
  FEWBIT_CUDA_LAUNCHED();
}

void choose_scales(Exec& ex, ConstTensorView w, ConstTensorView h, int64_t group, const ScaleSearch& search,
                   TensorView scales, TensorView zeros) {
  const int64_t groups = (w.cols() + group - 1) / group;
  FEWBIT_ASSERT(group > 0 && scales.rows() == w.rows() && scales.cols() == groups);
  FEWBIT_ASSERT(search.symmetric || (zeros.data && zeros.shape == scales.shape));
  launch_choose_scales(ex.cuda_state().stream, {.w = w.as<float>(),
                                                .h = h.data ? h.as<float>() : nullptr,
                                                .scales = scales.as<float>(),
                                                .zeros = search.symmetric ? nullptr : zeros.as<uint8_t>(),
                                                .rows = w.rows(),
                                                .cols = w.cols(),
                                                .w_ld = w.cols(),
                                                .grid_ld = groups,
                                                .group = group,
                                                .search = search});
}

}  // namespace fewbit::cuda
