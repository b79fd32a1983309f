// Descent over codes: the product P = (T - Q) H is brought tile by tile by cuBLAS (strips of 1024 columns, as in
// error_feedback); one kernel walks the 128 columns of a tile, a warp per row, four columns a lane, H_BB in shared
// memory. The refit of scales stands in kernels/quantize/refit_cuda.cu.
#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/gemm.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/grid_search.cuh"
#include "kernels/quantize/refine.h"
#include "src/core/mat.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = static_cast<int>(kTileCols);
constexpr int kWarps = 16;
constexpr int kBlocksPerSm = 2;
constexpr int64_t kStripCols = 1024;
static_assert(kTile == 128, "four columns a lane");

struct Descent {
  const float* h;           // [n, n]
  const float* scales;      // [out, groups]
  const uint8_t* zeros;     // [out, groups] or null
  const int32_t* group_of;  // [n] or null
  uint8_t* codes;           // [out, n]
  float* delta;             // [out, n] T - Q
  float* change;            // [out, kStripCols] what the strip's walk took from delta so far
  const float* product;     // [out, kStripCols] (T - Q) H of this tile
  int64_t out, n, groups, group, begin;
  int64_t in_strip;  // first column of the tile within its strip
  int size, bits;
};

__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) descend_kernel(const Descent t) {
  extern __shared__ __align__(16) float tile[];  // H_BB [128, 128], zero beyond the tile
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = 4 * lane;
  for (int k = threadIdx.x; k < kTile * kTile; k += blockDim.x) {
    const int i = k / kTile, j = k % kTile;
    tile[k] = i < t.size && j < t.size ? t.h[(t.begin + i) * t.n + t.begin + j] : 0.f;
  }
  __syncthreads();
  const int max_code = (1 << t.bits) - 1, mid = 1 << (t.bits - 1);
  float diag[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) diag[i] = tile[(first + i) * kTile + first + i];
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < t.out;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    float p[4], level[4], scale[4], taken[4];
    int zero[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool inside = first + i < t.size;
      const int64_t c = t.begin + first + i;
      p[i] = level[i] = taken[i] = 0;
      scale[i] = 1;
      zero[i] = mid;
      if (inside) {
        const int64_t g = row * t.groups + (t.group_of ? t.group_of[c] : c / t.group);
        scale[i] = t.scales[g];
        if (t.zeros) zero[i] = t.zeros[g];
        level[i] = static_cast<float>(t.codes[row * t.n + c] - zero[i]);
        p[i] = t.product[row * kStripCols + first + i];
      }
    }
    for (int owner = 0; 4 * owner < t.size; ++owner) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Every lane looks at its own i-th column; only the owner's answer counts.
        const float best = grid_level(level[i] * scale[i] + p[i] / diag[i], scale[i], zero[i], max_code);
        const float step = (best - level[i]) * scale[i];
        const bool better = diag[i] > 0 && step * (2 * p[i] - step * diag[i]) > 0;
        const float d = __shfl_sync(kAllLanes, better ? step : 0.f, owner);
        if (d == 0) continue;
        if (lane == owner) {
          level[i] = best;
          taken[i] += d;
        }
        const float4 h = *reinterpret_cast<const float4*>(&tile[(4 * owner + i) * kTile + first]);
        p[0] -= d * h.x;
        p[1] -= d * h.y;
        p[2] -= d * h.z;
        p[3] -= d * h.w;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (first + i < t.size) {
        const int64_t c = t.begin + first + i;
        t.codes[row * t.n + c] = static_cast<uint8_t>(static_cast<int>(level[i]) + zero[i]);
        t.delta[row * t.n + c] -= taken[i];
        t.change[row * kStripCols + t.in_strip + first + i] = -taken[i];
      }
  }
}

// delta = target - value of the codes; a block per row.
__global__ void delta_kernel(const float* __restrict__ target, const Descent t) {
  const int64_t row = blockIdx.x;
  const int mid = 1 << (t.bits - 1);
  for (int64_t i = threadIdx.x; i < t.n; i += kThreads) {
    const int64_t g = row * t.groups + (t.group_of ? t.group_of[i] : i / t.group);
    const int level = t.codes[row * t.n + i] - (t.zeros ? t.zeros[g] : mid);
    t.delta[row * t.n + i] = target[row * t.n + i] - static_cast<float>(level) * t.scales[g];
  }
}

}  // namespace

void descend_codes(Exec& ex, const RefineArgs& args, ConstTensorView scales, TensorView codes) {
  const int64_t out = args.target.rows(), n = args.target.cols();
  FEWBIT_ASSERT(codes.shape == args.target.shape && scales.rows() == out && args.h.rows() == n && args.group > 0);
  if (out == 0) return;
  CudaState& s = ex.cuda_state();
  const Tensor delta = ex.alloc(DType::f32, {out, n});
  const Tensor product = ex.alloc(DType::f32, {out, kStripCols}), change = ex.alloc(DType::f32, {out, kStripCols});
  Descent t{.h = args.h.as<float>(),
            .scales = scales.as<float>(),
            .zeros = args.zeros.data ? args.zeros.as<uint8_t>() : nullptr,
            .group_of = args.group_of.data ? args.group_of.as<int32_t>() : nullptr,
            .codes = codes.as<uint8_t>(),
            .delta = delta.as<float>(),
            .change = change.as<float>(),
            .product = nullptr,
            .out = out,
            .n = n,
            .groups = scales.cols(),
            .group = args.group,
            .begin = 0,
            .in_strip = 0,
            .size = 0,
            .bits = args.bits};
  delta_kernel<<<static_cast<unsigned>(out), kThreads, 0, s.stream>>>(args.target.as<float>(), t);
  FEWBIT_CUDA_LAUNCHED();
  constexpr int kShared = kTile * kTile * static_cast<int>(sizeof(float));
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(descend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const unsigned blocks =
      static_cast<unsigned>(std::min((out + kWarps - 1) / kWarps, static_cast<int64_t>(s.sms()) * kBlocksPerSm));
  const Mat<const float> h = mat<float>(args.h);
  for (int64_t strip = 0; strip < n; strip += kStripCols) {
    const int64_t strip_end = std::min(n, strip + kStripCols);
    cuda::matmul(ex, {.a = mat<float>(delta),
                      .b = h.cols_range(strip, strip_end),
                      .c = {product.as<float>(), out, strip_end - strip, kStripCols}});
    for (int64_t begin = strip; begin < strip_end; begin += kTile) {
      const int64_t end = std::min(strip_end, begin + kTile);
      t.begin = begin;
      t.in_strip = begin - strip;
      t.size = static_cast<int>(end - begin);
      t.product = product.as<float>() + t.in_strip;
      if (begin > strip)
        cuda::matmul(ex, {.a = {change.as<float>(), out, begin - strip, kStripCols},
                          .b = h.block(strip, begin, begin, end),
                          .c = {product.as<float>() + t.in_strip, out, end - begin, kStripCols},
                          .beta = 1});
      descend_kernel<<<blocks, kWarps * 32, kShared, s.stream>>>(t);
      FEWBIT_CUDA_LAUNCHED();
    }
  }
}

}  // namespace fewbit::cuda
