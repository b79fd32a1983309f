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
#include "kernels/grids/two_of_four.h"
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

// p -= d H[column], from `column` of the strip on, or where 2:4 sparsity looks back, from the first column of its quad.
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

// What a lane's column may do in 2:4 sparsity: its own step, or the exchange with another column of its quad.
struct QuadMove {
  float to = 0, step = 0;  // level of this column, and by how much its value changes; 0: it stays as it is
  float away = 0;          // by how much the value of the other one changes
  int other = -1;          // its lane; -1: this column moves alone
};

// Of 32 columns that are looked at together, eight quads. row_of: H from the first column of the lane's quad on, in the
// row of the lane's own column.
__device__ __forceinline__ QuadMove quad_move(const LaneColumn& l, float p, const float (&row_of)[4], int max_code) {
  const int lane = threadIdx.x % 32, quad = lane / 4 * 4;
  const unsigned set = __ballot_sync(kAllLanes, l.inside && l.level != 0) >> quad & kWholeQuad;
  QuadMove m;
  m.to = l.best(p, max_code, m.step);
  const bool full = l.level == 0 && __popc(set) >= 2;
  if (full) m.step = 0;
  float gain = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float pk = __shfl_sync(kAllLanes, p, quad + i), hkk = __shfl_sync(kAllLanes, l.diag, quad + i),
                level = __shfl_sync(kAllLanes, l.level, quad + i);
    if (!full || !(set >> i & 1) || !(l.diag > 0)) continue;
    const QuadExchange e = quad_exchange({.product = p, .diagonal = l.diag}, {.product = pk, .diagonal = hkk},
                                         row_of[i], level, l.scale, l.zero, max_code);
    if (!(e.gain > gain)) continue;
    gain = e.gain;
    m = {.to = e.level, .step = e.level * l.scale, .away = -level * l.scale, .other = quad + i};
  }
  return m;
}

// The level `to` at a lane's column: its code, and the terms of T - Q.
__device__ __forceinline__ void store_level(const Descent& t, int64_t row, int column, const LaneColumn& l, float to) {
  const int at = static_cast<int>(t.begin) + column;
  t.q.codes[t.q.index(row, at)] = static_cast<uint8_t>(static_cast<int>(to) + l.zero);
  const int64_t term = row * t.delta.ld + at;
  split_value(t.target[t.q.index(row, at)] - to * l.scale, t.delta.high[term], t.delta.low[term]);
}

// descend_columns() where of every four columns two at most are not zero.
__device__ __forceinline__ void descend_quads(const Descent& t, int64_t row, int begin, float* p) {
  const int lane = threadIdx.x % 32, column = begin + lane;
  LaneColumn l = load_column(t, row, column);
  float row_of[4] = {};
  if (l.inside) {
    const int64_t at = t.begin + column;
    const float4 h = __ldg(reinterpret_cast<const float4*>(t.h + at * t.q.in + at / 4 * 4));
    row_of[0] = h.x, row_of[1] = h.y, row_of[2] = h.z, row_of[3] = h.w;
  }
  for (unsigned open = ~0u; open != 0;) {  // columns that have not had their turn
    const QuadMove m = quad_move(l, p[column], row_of, t.q.max_code);
    const unsigned gains = __ballot_sync(kAllLanes, m.step != 0) & open;
    if (gains == 0) break;
    const int first = __ffs(static_cast<int>(gains)) - 1;
    const float d = __shfl_sync(kAllLanes, m.step, first), away = __shfl_sync(kAllLanes, m.away, first);
    const int other = __shfl_sync(kAllLanes, m.other, first);
    if (lane == first || lane == other) {
      l.level = lane == first ? m.to : 0.f;
      store_level(t, row, column, l, l.level);
    }
    __syncwarp();
    subtract_row(t, begin + first, d, p);
    __syncwarp();
    if (other >= 0) subtract_row(t, begin + other, away, p);
    __syncwarp();
    open &= ~((2u << first) - 1);
  }
}

// Each of 32 columns in turn to its best level. Few change: the warp looks at all of them together, takes the step of
// the first that gains by one, and looks again at those behind it.
__device__ __forceinline__ void descend_columns(const Descent& t, int64_t row, int begin, float* p) {
  const int lane = threadIdx.x % 32, column = begin + lane;
  const LaneColumn l = load_column(t, row, column);
  for (unsigned open = ~0u; open != 0;) {  // columns that have not had their turn
    float step;
    const float to = l.best(p[column], t.q.max_code, step);
    const unsigned gains = __ballot_sync(kAllLanes, step != 0) & open;
    if (gains == 0) break;
    const int first = __ffs(static_cast<int>(gains)) - 1;
    const float d = __shfl_sync(kAllLanes, step, first);
    if (lane == first) store_level(t, row, column, l, to);
    __syncwarp();
    subtract_row(t, begin + first, d, p);
    __syncwarp();
    open &= ~((2u << first) - 1);
  }
}

template <bool kTwoOfFour>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) descend_kernel(const Descent t) {
  extern __shared__ __align__(16) float products[];  // [kWarps, kStrip]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= t.q.out) return;
  float* p = products + warp * kStrip;
  for (int c = lane; c < t.cols; c += 32) p[c] = t.product[row * kStrip + c];
  __syncwarp();
  for (int begin = 0; begin < t.cols; begin += 32) {
    if constexpr (kTwoOfFour)
      descend_quads(t, row, begin, p);
    else
      descend_columns(t, row, begin, p);
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
  auto* const kernel = args.two_of_four ? descend_kernel<true> : descend_kernel<false>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const auto blocks = static_cast<unsigned>((out + kWarps - 1) / kWarps);
  for (t.begin = 0; t.begin < n; t.begin += kStripCols) {
    t.cols = static_cast<int>(std::min(n - t.begin, kStripCols));
    split(s, t.h + t.begin, n, n, t.cols, h.terms());
    split_product(s, t.delta, h.terms(), out, n, t.cols, product.as<float>(), kStripCols);
    kernel<<<blocks, kWarps * 32, kShared, s.stream>>>(t);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace fewbit::cuda
