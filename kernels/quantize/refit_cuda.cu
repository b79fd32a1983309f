// Refit of scales: with C the levels, each row's normal equations are gathered on the tensor cores:
//   A = C^T H C  by Z_g = C_g H_g, many rows at once. Levels are exact in bf16, and H is the sum of three bf16 terms,
//                so that only the sums are rounded, to f32. A is symmetric: Z_g begins at the group's own columns.
//                normal_tiles.cuh has this for the usual groups; of others Z is written, and its dots are f64.
//   b = C^T H (T - Q), what the loss still falls by, so that the solution is the change of the scales and an error of
//                it is one of that change alone. The product (T - Q) H is that of split_product.cuh, dots are f64.
// The systems are solved by cuSOLVER's batched Cholesky. With the factor A = L L^T and the exact solution s*, the loss
// of any s is that of s* plus |L^T (s - s*)|^2, so the rounded scales and the old ones are compared without another
// product.
#include <algorithm>
#include <vector>

#include "kernels/device/normal_tiles.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/split_product.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/upload.h"
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/group_order.h"
#include "kernels/quantize/refine.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

GroupOrder order_by_group(Exec& ex, const MutableCodedView& q) {
  Tensor host;
  if (q.group_of.data) host = ex.to_host(q.group_of);
  return GroupOrder(q.codes.cols(), q.scales.cols(),
                    [&](int64_t i) { return host ? host.as<int32_t>()[i] : static_cast<int32_t>(i / q.group); });
}

// strip [3 width, cols]: the three terms of h[order[first + i], order[begin + j]], one below the other; a block per
// row, gridDim.x = width.
__global__ void gather_gram_kernel(const float* __restrict__ h, const int32_t* __restrict__ order,
                                   __nv_bfloat16* __restrict__ strip, int64_t n, int64_t first, int64_t begin,
                                   int64_t cols) {
  const int64_t i = blockIdx.x, width = gridDim.x, row = order[first + i] * n;
  for (int64_t j = threadIdx.x; j < cols; j += kThreads) {
    float rest = h[row + order[begin + j]];
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      const __nv_bfloat16 t = __float2bfloat16_rn(rest);
      rest -= __bfloat162float(t);
      strip[(term * width + i) * cols + j] = t;
    }
  }
}

// Levels of rows [0, gridDim.x) in group order.
__global__ void gather_levels_kernel(const CodedArrays<false> q,  // from row 0 of these on
                                     const int32_t* __restrict__ order,
                                     const int32_t* __restrict__ group_at,  // [in] group of each position
                                     __nv_bfloat16* __restrict__ level) {
  const int64_t row = blockIdx.x;
  for (int k = threadIdx.x; k < q.in; k += kThreads)
    level[q.index(row, k)] = __float2bfloat16_rn(static_cast<float>(q.code(row, order[k]) - q.zero(row, group_at[k])));
}

// stack [gridDim.x, 3 width] = the levels of a group three times over, for the three terms of H; a block per row.
__global__ void stack_levels_kernel(const __nv_bfloat16* __restrict__ level, __nv_bfloat16* __restrict__ stack,
                                    int64_t n, int64_t first, int64_t width) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const __nv_bfloat16 l = level[row * n + first + i];
    for (int term = 0; term < 3; ++term) stack[row * 3 * width + term * width + i] = l;
  }
}

// b [rows, groups] = the dots of a row's levels with (T - Q) H, both in the order of the columns; a block per row, a
// warp per group in turn.
__global__ void gradient_kernel(const float* __restrict__ product, const CodedArrays<false> q,
                                const int32_t* __restrict__ order, const int32_t* __restrict__ start,
                                double* __restrict__ b) {
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int g = warp; g < q.groups; g += kThreads / 32) {
    const int zero = q.zero(row, g);
    double sum = 0;
    for (int i = start[g] + lane; i < start[g + 1]; i += 32) {
      const int column = order[i];
      sum += static_cast<double>(product[q.index(row, column)]) * static_cast<double>(q.code(row, column) - zero);
    }
    sum = warp_sum(sum);
    if (lane == 0) b[q.grid_index(row, g)] = sum;
  }
}

// Row g of a row's A from the diagonal on, from Z_g [rows, n - start[g]]: a block per row, a warp per group of columns
// in turn.
__global__ void normal_row_kernel(const float* __restrict__ z, const __nv_bfloat16* __restrict__ level,
                                  const int32_t* __restrict__ start, double* __restrict__ a, int64_t n, int groups,
                                  int g) {
  const int64_t row = blockIdx.x, first = start[g];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* of_row = z + row * (n - first) - first;
  for (int k = g + warp; k < groups; k += kThreads / 32) {
    double sum = 0;
    for (int i = start[k] + lane; i < start[k + 1]; i += 32)
      sum += static_cast<double>(of_row[i]) * static_cast<double>(__bfloat162float(level[row * n + i]));
    sum = warp_sum(sum);
    if (lane == 0) a[(row * groups + g) * groups + k] = sum;
  }
}

// A group whose levels are all zero has a zero pivot: its equation becomes "the scale stays". Also lists the systems
// for the batched solver.
__global__ void mend_kernel(double* a, double* b, double** a_list, double** b_list, int64_t rows, int groups) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= rows * groups) return;
  const int64_t row = k / groups, g = k % groups;
  double& pivot = a[(row * groups + g) * groups + g];
  if (pivot == 0) {
    pivot = 1;
    b[k] = 0;
  }
  if (g == 0) {
    a_list[row] = a + row * groups * groups;
    b_list[row] = b + row * groups;
  }
}

// Takes the rounded solution of a row where its loss is below that of the old scales; a block per row. Shared memory:
// the distances of both from the exact solution, [2, groups].
__global__ void accept_kernel(const double* __restrict__ factor,  // [rows, groups, groups], lower, column-major
                              const double* __restrict__ solved,  // [rows, groups] changes of the scales
                              const int* __restrict__ info, float* __restrict__ scales, int groups, DType dtype) {
  extern __shared__ double distance[];
  __shared__ double room[32];
  const int64_t row = blockIdx.x;
  if (info[row] != 0) return;
  double *fresh = distance, *old = distance + groups;
  int bad = 0;
  for (int g = threadIdx.x; g < groups; g += kThreads) {
    const double exact = scales[row * groups + g] + solved[row * groups + g];
    const float stored = stored_scale(static_cast<float>(exact), dtype);
    bad |= !isfinite(stored);
    fresh[g] = stored - exact;
    old[g] = -solved[row * groups + g];
  }
  if (__syncthreads_or(bad)) return;
  const double* l = factor + row * groups * groups;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double gain = 0;  // |L^T old|^2 - |L^T fresh|^2
  for (int k = warp; k < groups; k += kThreads / 32) {
    double f = 0, o = 0;
    for (int i = k + lane; i < groups; i += 32) {
      const double lik = l[static_cast<int64_t>(k) * groups + i];
      f += lik * fresh[i];
      o += lik * old[i];
    }
    f = warp_sum(f);
    o = warp_sum(o);
    if (lane == 0) gain += o * o - f * f;
  }
  gain = block_sum(gain, room);
  if (!(gain > 0)) return;
  for (int g = threadIdx.x; g < groups; g += kThreads) {
    const double exact = scales[row * groups + g] + solved[row * groups + g];
    scales[row * groups + g] = stored_scale(static_cast<float>(exact), dtype);
  }
}

// The refit of a linear: b of all rows, then the systems of some rows at a time.
class Refit {
 public:
  Refit(Exec& ex, const RefineArgs& a, const MutableCodedView& q, const GroupOrder& by_group)
      : ex_(ex),
        s_(ex.cuda_state()),
        a_(a),
        q_(q),
        by_group_(by_group),
        n_(q.codes.cols()),
        groups_(by_group.groups()),
        tiles_(tiles()) {
    std::vector<int32_t> at(static_cast<size_t>(n_));
    for (int64_t g = 0; g < groups_; ++g)
      std::fill(at.begin() + by_group.begin(g), at.begin() + by_group.end(g), static_cast<int32_t>(g));
    order_ = upload(ex, by_group.order);
    group_at_ = upload(ex, at);
    start_ = upload(ex, by_group.start);
    b_rows_ = ex.alloc(DType::f64, {q.codes.rows(), groups_});
  }

  void run() {
    const int64_t out = q_.codes.rows(), most = refit_rows(Device::cuda, out, n_, groups_);
    gradient(out);
    make_room(most);
    for (int64_t begin = 0; begin < out; begin += most) some(begin, std::min(most, out - begin));
  }

 private:
  // Whether the kernel of normal_tiles.cuh takes these groups.
  bool tiles() const {
    const int64_t width = by_group_.end(0) - by_group_.begin(0);
    bool even = n_ % refit::kTile == 0 && (width == 32 || width == 64 || width == 128);
    for (int64_t g = 1; even && g < groups_; ++g) even = by_group_.end(g) - by_group_.begin(g) == width;
    return even && s_.max_shared() >= sizeof(refit::TileShared);
  }

  void make_room(int64_t most) {
    level_ = ex_.alloc(DType::bf16, {most, n_});
    a_rows_ = ex_.alloc(DType::f64, {most, groups_, groups_});
    lists_ = ex_.alloc(DType::u64, {2, most});
    info_ = ex_.alloc_zeros(DType::i32, {most + 1});
    if (tiles_) return;
    int64_t widest = 1, strip = 1;
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t width = by_group_.end(g) - by_group_.begin(g);
      widest = std::max(widest, width);
      strip = std::max(strip, refit_strip(Device::cuda, width, n_));
    }
    strip_ = ex_.alloc(DType::bf16, {3 * strip});
    stack_ = ex_.alloc(DType::bf16, {most, 3 * widest});
    product_ = ex_.alloc(DType::f32, {most, n_});
  }

  CodedArrays<false> rows_from(int64_t begin) const {
    CodedArrays<false> here(read_only(q_));
    here.codes += here.index(begin, 0);
    here.scales += here.grid_index(begin, 0);
    if (here.zeros) here.zeros += here.grid_index(begin, 0);
    return here;
  }

  // The refit of rows [begin, begin + rows).
  void some(int64_t begin, int64_t rows) {
    gather_levels_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s_.stream>>>(
        rows_from(begin), order_.as<int32_t>(), group_at_.as<int32_t>(), level());
    FEWBIT_CUDA_LAUNCHED();
    if (tiles_)
      refit::normal_tiles(s_, {.h = a_.h.as<float>(),
                               .order = order_.as<int32_t>(),
                               .level = level(),
                               .a = a_rows_.as<double>(),
                               .n = n_,
                               .rows = rows,
                               .groups = static_cast<int>(groups_)});
    else
      for (int64_t g = 0; g < groups_; ++g) normal_row(g, rows);
    solve(rows, b_rows_.as<double>() + begin * groups_, q_.scales.as<float>() + begin * groups_);
  }

  // The systems of `rows` rows with their right sides b, and their solutions into the scales `s` of these rows where
  // they are better.
  void solve(int64_t rows, double* b, float* s) {
    auto** a_list = reinterpret_cast<double**>(lists_.as<uint64_t>());
    double** b_list = a_list + rows;
    mend_kernel<<<grid_for(rows * groups_, kThreads), kThreads, 0, s_.stream>>>(a_rows_.as<double>(), b, a_list, b_list,
                                                                                rows, static_cast<int>(groups_));
    FEWBIT_CUDA_LAUNCHED();
    const int order = static_cast<int>(groups_), batch = static_cast<int>(rows);
    FEWBIT_CUSOLVER_CALL(
        cusolverDnDpotrfBatched(s_.solver(), CUBLAS_FILL_MODE_LOWER, order, a_list, order, info_.as<int32_t>(), batch));
    FEWBIT_CUSOLVER_CALL(cusolverDnDpotrsBatched(s_.solver(), CUBLAS_FILL_MODE_LOWER, order, 1, a_list, order, b_list,
                                                 order, info_.as<int32_t>() + info_.numel() - 1, batch));
    accept_kernel<<<static_cast<unsigned>(rows), kThreads, static_cast<size_t>(2 * groups_) * sizeof(double),
                    s_.stream>>>(a_rows_.as<double>(), b, info_.as<int32_t>(), s, order, a_.scale_dtype);
    FEWBIT_CUDA_LAUNCHED();
  }

  // b of all rows: wide products, which few rows at a time would not give.
  void gradient(int64_t out) {
    const SplitMatrix delta(ex_, out, n_), h(ex_, n_, std::min(n_, kRefitCols));
    const Tensor product = ex_.alloc(DType::f32, {out, n_});
    const CodedArrays<false> q(read_only(q_));
    delta_terms_kernel<<<static_cast<unsigned>(out), kThreads, 0, s_.stream>>>(a_.target.as<float>(), q, delta.terms());
    FEWBIT_CUDA_LAUNCHED();
    for (int64_t strip = 0; strip < n_; strip += kRefitCols) {
      const int64_t cols = std::min(n_ - strip, kRefitCols);
      split(s_, a_.h.as<float>() + strip, n_, n_, cols, h.terms());
      split_product(s_, delta.terms(), h.terms(), out, n_, cols, product.as<float>() + strip, n_);
    }
    gradient_kernel<<<static_cast<unsigned>(out), kThreads, 0, s_.stream>>>(
        product.as<float>(), q, order_.as<int32_t>(), start_.as<int32_t>(), b_rows_.as<double>());
    FEWBIT_CUDA_LAUNCHED();
  }

  // Row g of A of every row, from the diagonal on.
  void normal_row(int64_t g, int64_t rows) {
    const int64_t first = by_group_.begin(g), width = by_group_.end(g) - first, behind = n_ - first;
    if (width == 0) {
      ex_.zero(product_);
    } else {
      stack_levels_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s_.stream>>>(level(), stack(), n_, first, width);
      FEWBIT_CUDA_LAUNCHED();
    }
    const int64_t most = strip_columns(Device::cuda, width, n_);
    for (int64_t begin = 0; width > 0 && begin < behind; begin += most) {
      const int64_t cols = std::min(most, behind - begin);
      gather_gram_kernel<<<static_cast<unsigned>(width), kThreads, 0, s_.stream>>>(
          a_.h.as<float>(), order_.as<int32_t>(), strip(), n_, first, first + begin, cols);
      FEWBIT_CUDA_LAUNCHED();
      const RowFactors levels_and_gram[] = {{stack(), strip()}};  // Z = C_g H_g
      row_product(s_,
                  {.type = CUDA_R_16BF,
                   .rows = rows,
                   .inner = 3 * width,
                   .cols = cols,
                   .a_ld = 3 * width,
                   .b_ld = cols,
                   .c = product_.as<float>() + begin,
                   .c_ld = behind},
                  levels_and_gram);
    }
    normal_row_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s_.stream>>>(
        product_.as<float>(), level(), start_.as<int32_t>(), a_rows_.as<double>(), n_, static_cast<int>(groups_),
        static_cast<int>(g));
    FEWBIT_CUDA_LAUNCHED();
  }

  __nv_bfloat16* level() const { return level_.as<__nv_bfloat16>(); }
  __nv_bfloat16* stack() const { return stack_.as<__nv_bfloat16>(); }
  __nv_bfloat16* strip() const { return strip_.as<__nv_bfloat16>(); }

  Exec& ex_;
  CudaState& s_;
  const RefineArgs& a_;
  const MutableCodedView& q_;
  const GroupOrder& by_group_;
  int64_t n_, groups_;
  bool tiles_;
  Tensor order_{}, group_at_{}, start_{};  // i32
  Tensor b_rows_{};                        // of all rows
  Tensor level_{}, a_rows_{}, lists_{}, info_{};
  // Where Z is written: terms of H that a product needs, a group's levels thrice, both bf16; Z_g, f32.
  Tensor strip_{}, stack_{}, product_{};
};

}  // namespace

void refit_scales(Exec& ex, const RefineArgs& args, const MutableCodedView& q) {
  if (q.codes.rows() == 0) return;
  const GroupOrder by_group = order_by_group(ex, q);
  Refit(ex, args, q, by_group).run();
}

}  // namespace fewbit::cuda
