// 4-bit floats: a thread owns a group of 16 or 32 neighbouring weights and tries its scales on values in registers and
// cache. Bytes moved: w once from memory, codes and scales out.
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/fp4_grid.h"
#include "kernels/quantize/round_fp4.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void round_fp4_kernel(const float* __restrict__ w,  // [all groups, group]
                                 const float* __restrict__ h,  // [in] or null
                                 uint8_t* __restrict__ codes,  // as w
                                 float* __restrict__ scales,   // [all groups]
                                 int64_t all, int64_t groups, int group, DType dtype, float global, bool search) {
  const int64_t k = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (k >= all) return;
  const Fp4Group g{w + k * group, h ? h + (k % groups) * group : nullptr, group};
  const float s = scale_value(choose_fp4_scale(g, dtype, global, search), dtype);
  scales[k] = s;
  for (int i = 0; i < group; ++i) codes[k * group + i] = e2m1_code(g.w[i] / mul_rn(s, global));
}

}  // namespace

void round_fp4(Exec& ex, const Fp4Rounding& a, TensorView codes, TensorView scales) {
  const int64_t groups = a.w.cols() / a.group, all = a.w.rows() * groups;
  FEWBIT_ASSERT(a.w.cols() % a.group == 0 && scales.numel() == all && codes.numel() == a.w.numel());
  if (all == 0) return;
  round_fp4_kernel<<<static_cast<unsigned>((all + kThreads - 1) / kThreads), kThreads, 0, ex.cuda_state().stream>>>(
      a.w.as<float>(), a.h.data ? a.h.as<float>() : nullptr, codes.as<uint8_t>(), scales.as<float>(), all, groups,
      static_cast<int>(a.group), a.scale_dtype, a.global, a.search);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
