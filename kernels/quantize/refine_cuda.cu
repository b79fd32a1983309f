// Descent over codes: the product P = (T - Q) H is brought strip by strip of 1024 columns on the tensor cores, both
// factors in two bf16 terms: a step is taken where it lowers the loss, and an error of 2^-16 in P decides near ties
// alone. One kernel walks the 128 columns of a tile, a warp per row, four columns a lane, H_BB in shared
// memory. The refit of scales stands in kernels/quantize/refit_cuda.cu.
#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/device/split_product.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/integer_grid.h"
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
static_assert(kTile == 128, "four columns a lane");

struct Descent {
  CodedArrays<true> q;   // codes change
  const float* h;        // [in, in]
  float* delta;          // [out, in] T - Q
  float* change;         // [out, kStripCols] what the strip's walk took from delta so far
  const float* product;  // [out, kStripCols] (T - Q) H of this tile
  int64_t begin;         // first column of the tile
  int64_t in_strip;      // the same within its strip
  int size;              // columns of the tile
};

// A lane's four columns of a row, while it goes through a tile.
struct LaneColumns {
  float product[4], level[4], scale[4];
  float taken[4];  // what the steps so far took from delta
  int zero[4];
};

__device__ __forceinline__ LaneColumns load_columns(const Descent& t, int64_t row, int first) {
  LaneColumns l;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    l.product[i] = l.level[i] = l.taken[i] = 0;
    l.scale[i] = 1;
    l.zero[i] = t.q.mid;
    if (first + i < t.size) {
      const int column = static_cast<int>(t.begin) + first + i, g = t.q.group_at(column);
      l.scale[i] = t.q.scale(row, g);
      l.zero[i] = t.q.zero(row, g);
      l.level[i] = static_cast<float>(t.q.code(row, column) - l.zero[i]);
      l.product[i] = t.product[row * kStripCols + first + i];
    }
  }
  return l;
}

// Each column of the tile in turn to its best level; `tile` is H_BB, `diag` the lane's four entries of its diagonal.
__device__ __forceinline__ void descend_row(const float* tile, const float (&diag)[4], int size, int max_code, int lane,
                                            LaneColumns& l) {
  for (int owner = 0; 4 * owner < size; ++owner) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Every lane looks at its own i-th column; only the owner's answer counts.
      const float best = grid_level(l.level[i] * l.scale[i] + l.product[i] / diag[i], l.scale[i], l.zero[i], max_code);
      const float step = (best - l.level[i]) * l.scale[i];
      const bool better = diag[i] > 0 && step * (2 * l.product[i] - step * diag[i]) > 0;
      const float d = __shfl_sync(kAllLanes, better ? step : 0.f, owner);
      if (d == 0) continue;
      if (lane == owner) {
        l.level[i] = best;
        l.taken[i] += d;
      }
      const float4 h = *reinterpret_cast<const float4*>(&tile[(4 * owner + i) * kTile + 4 * lane]);
      l.product[0] -= d * h.x;
      l.product[1] -= d * h.y;
      l.product[2] -= d * h.z;
      l.product[3] -= d * h.w;
    }
  }
}

__device__ __forceinline__ void store_columns(const Descent& t, int64_t row, int first, const LaneColumns& l) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i < t.size) {
      const int64_t at = t.q.index(row, static_cast<int>(t.begin) + first + i);
      t.q.codes[at] = static_cast<uint8_t>(static_cast<int>(l.level[i]) + l.zero[i]);
      t.delta[at] -= l.taken[i];
      t.change[row * kStripCols + t.in_strip + first + i] = -l.taken[i];
    }
}

__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) descend_kernel(const Descent t) {
  extern __shared__ __align__(16) float tile[];  // H_BB [128, 128], zero beyond the tile
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = 4 * lane;
  for (int k = threadIdx.x; k < kTile * kTile; k += blockDim.x) {
    const int i = k / kTile, j = k % kTile;
    tile[k] = i < t.size && j < t.size ? t.h[(t.begin + i) * t.q.in + t.begin + j] : 0.f;
  }
  __syncthreads();
  float diag[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) diag[i] = tile[(first + i) * kTile + first + i];
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < t.q.out;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    LaneColumns columns = load_columns(t, row, first);
    descend_row(tile, diag, t.size, t.q.max_code, lane, columns);
    store_columns(t, row, first, columns);
  }
}

// delta = target - value of the codes; a block per row.
__global__ void delta_kernel(const float* __restrict__ target, const CodedArrays<false> q, float* __restrict__ delta) {
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < q.in; i += kThreads) {
    const int g = q.group_at(i);
    const float level = static_cast<float>(q.code(row, i) - q.zero(row, g));
    delta[q.index(row, i)] = target[q.index(row, i)] - level * q.scale(row, g);
  }
}

}  // namespace

void descend_codes(Exec& ex, const RefineArgs& args, const MutableCodedView& q) {
  const int64_t out = q.codes.rows(), n = q.codes.cols();
  if (out == 0) return;
  CudaState& s = ex.cuda_state();
  const Tensor delta = ex.alloc(DType::f32, {out, n});
  const Tensor product = ex.alloc(DType::f32, {out, kStripCols}), change = ex.alloc(DType::f32, {out, kStripCols});
  Descent t{.q = CodedArrays<true>(q),
            .h = args.h.as<float>(),
            .delta = delta.as<float>(),
            .change = change.as<float>(),
            .product = nullptr,
            .begin = 0,
            .in_strip = 0,
            .size = 0};
  delta_kernel<<<static_cast<unsigned>(out), kThreads, 0, s.stream>>>(args.target.as<float>(),
                                                                      CodedArrays<false>(read_only(q)), t.delta);
  FEWBIT_CUDA_LAUNCHED();
  constexpr int kShared = kTile * kTile * static_cast<int>(sizeof(float));
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(descend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const unsigned blocks =
      static_cast<unsigned>(std::min((out + kWarps - 1) / kWarps, static_cast<int64_t>(s.sms()) * kBlocksPerSm));
  const Mat<const float> h = mat<float>(args.h);
  const SplitMatrix delta_terms(ex, out, n), h_terms(ex, n, kStripCols);
  split(s, t.delta, n, out, n, delta_terms.terms());
  for (int64_t strip = 0; strip < n; strip += kStripCols) {
    const int64_t strip_end = std::min(n, strip + kStripCols), cols = strip_end - strip;
    split(s, t.h + strip, n, n, cols, h_terms.terms());
    split_product(s, delta_terms.terms(), h_terms.terms(), out, n, cols, product.as<float>(), kStripCols);
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
    split(s, t.delta + strip, n, out, cols, delta_terms.terms().at(0, strip));
  }
}

}  // namespace fewbit::cuda
