// Weights to codes on a given grid: a block has a row, a thread every 256th column of it. Bound by memory: 4 bytes are
// read and 1 is written per weight, and the scales come from the cache.
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/f8_grid.h"
#include "kernels/quantize/round_to_grid.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kF8>
__global__ void round_kernel(const float* __restrict__ w,    // [out, in]
                             const CodedArrays<false> grid,  // without codes
                             uint8_t* __restrict__ codes) {  // [out, in]
  const int64_t row = blockIdx.x, scale_row = grid.scale_row(row);
  for (int i = threadIdx.x; i < grid.in; i += kThreads) {
    const int g = grid.group_at(i), zero = grid.zero(row, g);
    const float value = w[grid.index(row, i)], scale = grid.scale(scale_row, g);
    codes[grid.index(row, i)] =
        kF8 ? f8_code(value / scale)
            : static_cast<uint8_t>(static_cast<int>(grid_level(value, scale, zero, grid.max_code)) + zero);
  }
}

}  // namespace

void round_to_grid(Exec& ex, ConstTensorView w, const MutableCodedView& q) {
  CodedArrays<false> grid(read_only(q));
  grid.codes = nullptr;  // they are written, so they are not read-only
  if (grid.out == 0) return;
  const auto kernel = q.grid == Grid::f8_e4m3 ? round_kernel<true> : round_kernel<false>;
  kernel<<<static_cast<unsigned>(grid.out), kThreads, 0, ex.cuda_state().stream>>>(w.as<float>(), grid,
                                                                                   q.codes.as<uint8_t>());
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
