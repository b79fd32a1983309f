// Weights to codes: a block per row, a thread per column, threads striding over the row. One read of 4 bytes
// and one write of 1 per weight; scales come from the cache.
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/f8_grid.h"
#include "kernels/quantize/round_to_grid.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kF8>
__global__ void round_kernel(const float* __restrict__ w,           // [out, in]
                             const float* __restrict__ scales,      // [rows of scales, groups]
                             const uint8_t* __restrict__ zeros,     // [out, groups] or null
                             const int32_t* __restrict__ group_of,  // [in] or null
                             uint8_t* __restrict__ codes,           // [out, in]
                             int in, int groups, int group, int bits, int64_t out_group) {
  const int64_t row = blockIdx.x;
  const int max_code = (1 << bits) - 1, mid = 1 << (bits - 1);
  for (int i = threadIdx.x; i < in; i += kThreads) {
    const int g = group_of ? group_of[i] : i / group;
    const float value = w[row * in + i], scale = scales[row / out_group * groups + g];
    const int zero = zeros ? zeros[row * groups + g] : mid;
    codes[row * in + i] = kF8 ? f8_code(value / scale)
                              : static_cast<uint8_t>(static_cast<int>(grid_level(value, scale, zero, max_code)) + zero);
  }
}

}  // namespace

void round_to_grid(Exec& ex, const RoundArgs& a, TensorView codes) {
  const int64_t out = a.w.rows(), in = a.w.cols();
  FEWBIT_ASSERT(codes.rows() == out && codes.cols() == in && a.group > 0 && a.out_group > 0);
  FEWBIT_ASSERT(a.scales.rows() == (out + a.out_group - 1) / a.out_group);
  FEWBIT_ASSERT(a.grid == Grid::integer || a.grid == Grid::f8_e4m3);
  if (out == 0) return;
  const auto kernel = a.grid == Grid::f8_e4m3 ? round_kernel<true> : round_kernel<false>;
  kernel<<<static_cast<unsigned>(out), kThreads, 0, ex.cuda_state().stream>>>(
      a.w.as<float>(), a.scales.as<float>(), a.zeros.data ? a.zeros.as<uint8_t>() : nullptr,
      a.group_of.data ? a.group_of.as<int32_t>() : nullptr, codes.as<uint8_t>(), static_cast<int>(in),
      static_cast<int>(a.scales.cols()), static_cast<int>(a.group), a.bits, a.out_group);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
