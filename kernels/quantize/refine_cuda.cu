// Descent over codes: the product P = (T - Q) H is brought strip by strip of 1024 columns on the tensor cores, both
// factors in two bf16 terms: a step is taken where it lowers the loss, and an error of 2^-16 in P decides near ties
// alone. One kernel walks a strip, a warp per row, P in shared memory. The refit of scales stands in
// kernels/quantize/refit_cuda.cu.
#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/device/split_product.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/grid_search.cuh"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/quantize/refine.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStrip = static_cast<int>(kStripCols);
constexpr int kWarps = 16;
constexpr int kBlocksPerSm = 2;

struct Descent {
  CodedArrays<true> q;   // codes change
  const float* target;   // [out, in]
  const float* h;        // [in, in]
  const float* diag;     // [in] of H
  SplitTerms delta;      // [out, in] T - Q, which changes with the codes
  const float* product;  // [out, kStrip] (T - Q) H of this strip
  int64_t begin;         // first column of the strip
  int cols;              // columns of the strip
};

// What a lane knows of its column, of 32 that are looked at together.
struct LaneColumn {
  float level = 0, scale = 1, diag = 0;
  int zero = 0;
  bool inside = false;

  // The best level for the product p of the column; `step` is by how much its value changes, 0 where nothing is gained.
  __device__ __forceinline__ float best(float p, int max_code, float& step) const {
    const float to = grid_level(level * scale + p / diag, scale, zero, max_code);
    const float by = (to - level) * scale;
    step = inside && diag > 0 && by * (2 * p - by * diag) > 0 ? by : 0.f;
    return to;
  }
};

__device__ __forceinline__ LaneColumn load_column(const Descent& t, int64_t row, int column) {
  LaneColumn l;
  l.inside = column < t.cols;
  if (!l.inside) return l;
  const int at = static_cast<int>(t.begin) + column, g = t.q.group_at(at);
  l.scale = t.q.scale(row, g);
  l.zero = t.q.zero(row, g);
  l.level = static_cast<float>(t.q.code(row, at) - l.zero);
  l.diag = t.diag[at];
  return l;
}

// p -= d H[column], from `column` of the strip on or a little before it, where nobody looks any more.
__device__ __forceinline__ void subtract_row(const Descent& t, int column, float d, float* p) {
  const int lane = threadIdx.x % 32;
  const float* h = t.h + (t.begin + column) * t.q.in + t.begin;
  if (t.q.in % 4 == 0) {  // then the strip's columns are as well, and rows of H lie at multiples of 16 bytes
#pragma unroll 4
    for (int c = column / 4 * 4 + 4 * lane; c < t.cols; c += 128) {
      const float4 by = __ldg(reinterpret_cast<const float4*>(h + c));
      float4& at = *reinterpret_cast<float4*>(p + c);
      at = make_float4(at.x - d * by.x, at.y - d * by.y, at.z - d * by.z, at.w - d * by.w);
    }
  } else {
    for (int c = column + lane; c < t.cols; c += 32) p[c] -= d * __ldg(h + c);
  }
}

// Each column of the strip in turn to its best level. Few change: a warp looks at 32 of them together, takes the step
// of the first that gains by one, and looks again at those behind it.
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) descend_kernel(const Descent t) {
  extern __shared__ __align__(16) float products[];  // [kWarps, kStrip]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= t.q.out) return;
  float* p = products + warp * kStrip;
  for (int c = lane; c < t.cols; c += 32) p[c] = t.product[row * kStrip + c];
  __syncwarp();
  for (int begin = 0; begin < t.cols; begin += 32) {
    const int column = begin + lane;
    const LaneColumn l = load_column(t, row, column);
    for (unsigned open = ~0u; open != 0;) {  // columns that have not had their turn
      float step;
      const float to = l.best(p[column], t.q.max_code, step);
      const unsigned gains = __ballot_sync(kAllLanes, step != 0) & open;
      if (gains == 0) break;
      const int first = __ffs(static_cast<int>(gains)) - 1;
      const float d = __shfl_sync(kAllLanes, step, first);
      if (lane == first) {
        const int at = static_cast<int>(t.begin) + column;
        t.q.codes[t.q.index(row, at)] = static_cast<uint8_t>(static_cast<int>(to) + l.zero);
        const int64_t term = row * t.delta.ld + at;
        split_value(t.target[t.q.index(row, at)] - to * l.scale, t.delta.high[term], t.delta.low[term]);
      }
      __syncwarp();
      subtract_row(t, begin + first, d, p);
      __syncwarp();
      open &= ~((2u << first) - 1);
    }
  }
}

}  // namespace

void descend_codes(Exec& ex, const RefineArgs& args, const MutableCodedView& q) {
  const int64_t out = q.codes.rows(), n = q.codes.cols();
  if (out == 0) return;
  CudaState& s = ex.cuda_state();
  const SplitMatrix delta(ex, out, n), h(ex, n, kStripCols);
  const Tensor product = ex.alloc(DType::f32, {out, kStripCols}), diag = ex.alloc(DType::f32, {n});
  cuda::diagonal(ex, args.h, diag);
  Descent t{.q = CodedArrays<true>(q),
            .target = args.target.as<float>(),
            .h = args.h.as<float>(),
            .diag = diag.as<float>(),
            .delta = delta.terms(),
            .product = product.as<float>(),
            .begin = 0,
            .cols = 0};
  delta_terms_kernel<<<static_cast<unsigned>(out), kThreads, 0, s.stream>>>(t.target, CodedArrays<false>(read_only(q)),
                                                                            t.delta);
  FEWBIT_CUDA_LAUNCHED();
  constexpr int kShared = kWarps * kStrip * static_cast<int>(sizeof(float));
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(descend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const auto blocks = static_cast<unsigned>((out + kWarps - 1) / kWarps);
  for (t.begin = 0; t.begin < n; t.begin += kStripCols) {
    t.cols = static_cast<int>(std::min(n - t.begin, kStripCols));
    split(s, t.h + t.begin, n, n, t.cols, h.terms());
    split_product(s, t.delta, h.terms(), out, n, t.cols, product.as<float>(), kStripCols);
    descend_kernel<<<blocks, kWarps * 32, kShared, s.stream>>>(t);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace fewbit::cuda
