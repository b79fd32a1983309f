// E2M1 codes in tiles to values: a thread has eight codes at a time, a block of threads an output. Bound by the
// writing.
#include "kernels/device/fp4_codes.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/fp4_values.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

// Grid: outputs.
__global__ void __launch_bounds__(kThreads)
    fp4_values_kernel(const uint32_t* __restrict__ tiles, int64_t in, int words, uint4* __restrict__ w) {
  const int64_t row = blockIdx.x;
  w += row * words;
  const auto* bytes = reinterpret_cast<const uint8_t*>(tiles);
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const Fp4Place place = fp4_place_of(row, i / kFp4BlockWords, in);
    const uint32_t word = tiles[place.words + i % kFp4BlockWords], factor = fp4_factor(bytes[place.scale]);
    w[i] = {fp4_pair<0>(word, factor), fp4_pair<1>(word, factor), fp4_pair<2>(word, factor), fp4_pair<3>(word, factor)};
  }
}

}  // namespace

void fp4_values(Exec& ex, const Fp4View& q, TensorView w) {
  if (q.out() == 0 || q.in == 0) return;
  FEWBIT_ASSERT(aligned16(q.tiles.as<uint32_t>()) && aligned16(w.as<__nv_bfloat16>()));
  fp4_values_kernel<<<static_cast<unsigned>(q.out()), kThreads, 0, ex.cuda_state().stream>>>(
      q.tiles.as<uint32_t>(), q.in, static_cast<int>(q.in / kFp4WordCodes), static_cast<uint4*>(w.data));
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
