// expert_gemms in bf16: a block has a tile of 128 rows by 128 outputs of one product, whose inputs come 64 at a time
// through three stages of shared memory; eight warps, two by 64 rows and four by 32 outputs. Sums in f32 go through the
// inputs in their order. Which rows and weights are whose travels with the launch.
#include <algorithm>

#include "kernels/device/jobs.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/expert_gemms.h"
#include "kernels/products/gemm.h"

namespace fewbit::cuda {
namespace {

constexpr int kRows = 128, kOut = 128, kIn = 64;  // of a tile
constexpr int kThreads = 256, kStages = 3;
constexpr int kPieces = kIn / 8;  // of 16 bytes, in a row of a stage
constexpr int kPitch = kOut + 8;  // of the answers in shared memory
constexpr int kPasses = kRows * kPieces / kThreads;

struct Stage {
  __nv_bfloat16 x[kRows * kIn], w[kOut * kIn];
};
constexpr size_t kShared = kStages * sizeof(Stage);
static_assert(kRows == kOut && kRows * kPitch * sizeof(__nv_bfloat16) <= kShared);

// Products of a launch.
struct Products {
  static constexpr int kMost = 128;
  const __nv_bfloat16* w[kMost];
  int begin[kMost], end[kMost];
  int tiles[kMost];  // tiles of rows of this product and those before it
  int count;
};

// Where piece `piece` of a row lies: swapped so that ldmatrix meets every bank once.
__device__ __forceinline__ int swizzled(int row, int piece) { return row * kIn + ((piece ^ (row % 8)) * 8); }

struct Tile {
  const __nv_bfloat16 *x, *w;  // the first row of the tile
  int rows, outs;              // of it
};

// Inputs [first, first + kIn) into a stage. Behind the last row that one again, whose answers nobody takes.
__device__ __forceinline__ void load_stage(const Tile& t, int64_t in, int64_t first, Stage& to) {
  const int piece = threadIdx.x % kPieces;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int row = threadIdx.x / kPieces + pass * (kThreads / kPieces);
    cp_async16(&to.x[swizzled(row, piece)], t.x + min(row, t.rows - 1) * in + first + piece * 8);
    cp_async16(&to.w[swizzled(row, piece)], t.w + min(row, t.outs - 1) * in + first + piece * 8);
  }
}

__device__ __forceinline__ void multiply(const Stage& s, int warp_row, int warp_out, float (&sum)[4][4][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kIn / 16; ++step) {
    uint32_t a[4][4], b[2][4];
#pragma unroll
    for (int m = 0; m < 4; ++m) ldmatrix(a[m], &s.x[swizzled(warp_row + m * 16 + lane % 16, step * 2 + lane / 16)]);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      ldmatrix(b[n], &s.w[swizzled(warp_out + n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2)]);
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n) mma_bf16(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
  }
}

// The answers of a tile by way of shared memory, so that rows are written in 16 bytes.
__device__ __forceinline__ void store_tile(const float (&sum)[4][4][4], int warp_row, int warp_out, const Tile& t,
                                           __nv_bfloat16* shared, __nv_bfloat16* y, int64_t out) {
  const int lane = threadIdx.x % 32, g = lane / 4, two = lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<uint32_t*>(&shared[(warp_row + m * 16 + half * 8 + g) * kPitch + warp_out + n * 8 + two]) =
            pack_bf16(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * (kOut / 8); i += kThreads) {
    const int row = i / (kOut / 8), col = i % (kOut / 8) * 8;
    if (row < t.rows && col < t.outs)
      *reinterpret_cast<uint4*>(y + row * out + col) = *reinterpret_cast<const uint4*>(&shared[row * kPitch + col]);
  }
}

// Block x: the tile of outputs; block y: of rows, through all products.
__global__ void __launch_bounds__(kThreads, 2)
    expert_gemms_kernel(const __nv_bfloat16* __restrict__ x, const Products p, __nv_bfloat16* __restrict__ y,
                        int64_t in, int64_t out) {
  extern __shared__ __align__(128) unsigned char raw[];
  Stage* stages = reinterpret_cast<Stage*>(raw);
  const int tile = static_cast<int>(blockIdx.y);
  const int own = job_of_block(p.tiles, p.count, tile);
  const int row = p.begin[own] + (tile - (own > 0 ? p.tiles[own - 1] : 0)) * kRows;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kOut;
  const Tile t{x + row * in, p.w[own] + col * in, min(kRows, p.end[own] - row),
               static_cast<int>(min(static_cast<int64_t>(kOut), out - col))};
  const int warp = threadIdx.x / 32, warp_row = warp / 4 * 64, warp_out = warp % 4 * 32;
  const int steps = static_cast<int>(in / kIn);
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) load_stage(t, in, s * kIn, stages[s]);
    cp_async_commit();
  }
  float sum[4][4][4] = {};
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // also: nobody reads the stage any more that is filled next
    const int next = step + kStages - 1;
    if (next < steps) load_stage(t, in, static_cast<int64_t>(next) * kIn, stages[next % kStages]);
    cp_async_commit();
    multiply(stages[step % kStages], warp_row, warp_out, sum);
  }
  cp_async_wait<0>();
  __syncthreads();
  store_tile(sum, warp_row, warp_out, t, reinterpret_cast<__nv_bfloat16*>(raw), y + row * out + col, out);
}

void launch(CudaState& s, ConstTensorView x, const Products& p, TensorView y) {
  const int tiles = p.count > 0 ? p.tiles[p.count - 1] : 0;
  if (tiles == 0) return;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(expert_gemms_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(kShared)));
  const dim3 grid(static_cast<unsigned>((y.cols() + kOut - 1) / kOut), static_cast<unsigned>(tiles));
  expert_gemms_kernel<<<grid, kThreads, kShared, s.stream>>>(x.as<__nv_bfloat16>(), p, y.as<__nv_bfloat16>(), x.cols(),
                                                             y.cols());
  FEWBIT_CUDA_LAUNCHED();
}

bool takes(ConstTensorView x, std::span<const ExpertProduct> products, TensorView y) {
  if (!takes_expert_gemms(x.dtype, y.cols(), x.cols()) || !aligned16(static_cast<const char*>(x.data)) ||
      !aligned16(static_cast<const char*>(y.data)))
    return false;
  return std::all_of(products.begin(), products.end(),
                     [](const ExpertProduct& p) { return aligned16(static_cast<const char*>(p.w.data)); });
}

}  // namespace

void expert_gemms(Exec& ex, ConstTensorView x, std::span<const ExpertProduct> products, TensorView y) {
  if (!takes(x, products, y)) {
    for (const ExpertProduct& p : products)
      if (p.end > p.begin) cuda::gemm(ex, x.row_range(p.begin, p.end), p.w, {}, y.row_range(p.begin, p.end));
    return;
  }
  constexpr int kMostTiles = 65535;  // the limit of gridDim.y
  Products some{};
  int tiles = 0;
  const auto flush = [&] {
    launch(ex.cuda_state(), x, some, y);
    some.count = tiles = 0;
  };
  for (const ExpertProduct& p : products) {
    const auto more = static_cast<int>((p.end - p.begin + kRows - 1) / kRows);
    if (more == 0) continue;
    FEWBIT_ASSERT(more <= kMostTiles);
    if (some.count == Products::kMost || tiles + more > kMostTiles) flush();
    const int i = some.count++;
    some.w[i] = p.w.as<__nv_bfloat16>();
    some.begin[i] = static_cast<int>(p.begin);
    some.end[i] = static_cast<int>(p.end);
    some.tiles[i] = tiles += more;
  }
  flush();
}

}  // namespace fewbit::cuda
