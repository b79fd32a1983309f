// E2M1 codes in blocks to values: a thread has eight codes at a time, a block of threads a row. Bound by the writing.
#include "kernels/device/fp4_codes.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/fp4_values.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256, kCodes = kFp4WordCodes;

__global__ void __launch_bounds__(kThreads) fp4_values_kernel(const uint32_t* __restrict__ codes,  // [out, words]
                                                              const uint8_t* __restrict__ scales,  // [out, blocks]
                                                              int words, uint4* __restrict__ w) {
  const int64_t row = blockIdx.x;
  codes += row * words, w += row * words;
  scales += row * (words * kCodes / kFp4Block);
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const uint32_t word = codes[i], factor = fp4_factor(scales[i * kCodes / kFp4Block]);
    w[i] = {fp4_pair<0>(word, factor), fp4_pair<1>(word, factor), fp4_pair<2>(word, factor), fp4_pair<3>(word, factor)};
  }
}

}  // namespace

void fp4_values(Exec& ex, const Fp4View& q, TensorView w) {
  if (q.out() == 0 || q.in() == 0) return;
  FEWBIT_ASSERT(aligned16(q.words.as<uint32_t>()) && aligned16(w.as<__nv_bfloat16>()));
  fp4_values_kernel<<<static_cast<unsigned>(q.out()), kThreads, 0, ex.cuda_state().stream>>>(
      q.words.as<uint32_t>(), q.scales.as<uint8_t>(), static_cast<int>(q.in() / kCodes), static_cast<uint4*>(w.data));
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
