// Codes to Marlin words on a GPU: a thread makes a word, a block a tile of 16 values of k times 64 outputs. The block
// reads 16 neighbouring bytes of each of 64 rows; neighbouring blocks find the rest of those lines in the L2.
#include <cuda_fp16.h>

#include "kernels/exec/exec_cuda.h"
#include "kernels/products/marlin/marlin_pack_map.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) words_kernel(const __grid_constant__ MarlinPackJob j) {
  const int64_t row = blockIdx.x, skipped = marlin::words_per_row(j.first, j.bits);
  const int64_t tile_words = marlin::words_per_row(marlin::kTileN, j.bits), from = blockIdx.y * tile_words;
  for (int64_t col = from + threadIdx.x; col < from + tile_words; col += kThreads)
    j.b[row * marlin::words_per_row(j.out, j.bits) + skipped + col] = marlin_word(j, row, col);
}

__global__ void __launch_bounds__(kThreads) scales_kernel(const __grid_constant__ MarlinPackJob j) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= j.outs) return;
  auto* s = reinterpret_cast<__half*>(j.s);
  for (int64_t g = 0; g < j.groups; ++g)
    s[g * j.out + marlin::scale_column(j.first + n, j.groups > 1)] = __float2half_rn(j.scales[n * j.groups + g]);
}

}  // namespace

void marlin_pack(Exec& ex, const MarlinPackArgs& a, TensorView b, TensorView s) {
  const MarlinPackJob j(a, b, s);
  if (j.outs == 0) return;
  const cudaStream_t stream = ex.cuda_state().stream;
  const dim3 tiles(static_cast<unsigned>(j.in / marlin::kTileK), static_cast<unsigned>(j.outs / marlin::kTileN));
  FEWBIT_ASSERT(tiles.y <= 65535);
  words_kernel<<<tiles, kThreads, 0, stream>>>(j);
  FEWBIT_CUDA_LAUNCHED();
  scales_kernel<<<static_cast<unsigned>((j.outs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(j);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
