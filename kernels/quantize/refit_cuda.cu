// Refit of scales: with C the levels, each row's normal equations A = C^T H C, b = C^T H t are gathered group by group:
// one f64 product Z_g = C_g H_g (many rows at once; of H the rows of that group are widened) and one kernel of dots, a
// block per row. The systems are solved by
// cuSOLVER's batched Cholesky. With the factor A = L L^T and the exact solution s*, the loss of any s is that of s*
// plus |L^T (s - s*)|^2, so the rounded scales and the old ones are compared without another product.
#include <algorithm>
#include <vector>

#include "kernels/device/reduce.cuh"
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

// strip [gridDim.x, end - begin]: strip[i, j] = h[order[first + i], order[begin + j]]; a block per row.
__global__ void gather_gram_kernel(const float* __restrict__ h, const int32_t* __restrict__ order,
                                   double* __restrict__ strip, int64_t n, int64_t first, int64_t begin, int64_t end) {
  const int64_t i = blockIdx.x, row = order[first + i] * n;
  for (int64_t j = begin + threadIdx.x; j < end; j += kThreads)
    strip[i * (end - begin) + j - begin] = h[row + order[j]];
}

// level and target of rows [0, gridDim.x) in group order.
__global__ void gather_rows_kernel(const CodedArrays<false> q,  // from row 0 of these on
                                   const float* __restrict__ target, const int32_t* __restrict__ order,
                                   const int32_t* __restrict__ group_at,  // [in] group of each position
                                   double* __restrict__ factor,           // the levels, for the product
                                   float* __restrict__ level,             // the same, for the dots
                                   float* __restrict__ ordered) {         // the target
  const int64_t row = blockIdx.x;
  for (int k = threadIdx.x; k < q.in; k += kThreads) {
    const int column = order[k];
    const int64_t to = q.index(row, k);
    factor[to] = level[to] = static_cast<float>(q.code(row, column) - q.zero(row, group_at[k]));
    ordered[to] = target[q.index(row, column)];
  }
}

// Row g of a row's A and its b from Z_g: a block per row, a warp per group of columns in turn.
__global__ void normal_row_kernel(const double* __restrict__ z, const float* __restrict__ level,
                                  const float* __restrict__ target, const int32_t* __restrict__ start,
                                  double* __restrict__ a, double* __restrict__ b, int64_t n, int groups, int g) {
  __shared__ double room[32];
  const int64_t row = blockIdx.x, base = row * n;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double of_target = 0;
  for (int k = warp; k < groups; k += kThreads / 32) {
    double sum = 0;
    for (int i = start[k] + lane; i < start[k + 1]; i += 32) {
      const double zi = z[base + i];
      sum += zi * level[base + i];
      of_target += zi * target[base + i];
    }
    sum = warp_sum(sum);
    if (lane == 0) a[(row * groups + g) * groups + k] = sum;
  }
  of_target = block_sum(of_target, room);
  if (threadIdx.x == 0) b[row * groups + g] = of_target;
}

// A group whose levels are all zero has a zero pivot: its equation becomes "the scale stays". Also lists the systems
// for the batched solver.
__global__ void mend_kernel(double* a, double* b, const float* __restrict__ scales, double** a_list, double** b_list,
                            int64_t rows, int groups) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= rows * groups) return;
  const int64_t row = k / groups, g = k % groups;
  double& pivot = a[(row * groups + g) * groups + g];
  if (pivot == 0) {
    pivot = 1;
    b[k] = scales[k];
  }
  if (g == 0) {
    a_list[row] = a + row * groups * groups;
    b_list[row] = b + row * groups;
  }
}

// Takes the rounded solution of a row where its loss is below that of the old scales; a block per row. Shared memory:
// the distances of both from the exact solution, [2, groups].
__global__ void accept_kernel(const double* __restrict__ factor,  // [rows, groups, groups], lower, column-major
                              const double* __restrict__ solved,  // [rows, groups]
                              const int* __restrict__ info, float* __restrict__ scales, int groups, DType dtype) {
  extern __shared__ double distance[];
  __shared__ double room[32];
  const int64_t row = blockIdx.x;
  if (info[row] != 0) return;
  double *fresh = distance, *old = distance + groups;
  int bad = 0;
  for (int g = threadIdx.x; g < groups; g += kThreads) {
    const double exact = solved[row * groups + g];
    const float stored = stored_scale(static_cast<float>(exact), dtype);
    bad |= !isfinite(stored);
    fresh[g] = stored - exact;
    old[g] = scales[row * groups + g] - exact;
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
  for (int g = threadIdx.x; g < groups; g += kThreads)
    scales[row * groups + g] = stored_scale(static_cast<float>(solved[row * groups + g]), dtype);
}

// The refit of rows [begin, begin + rows).
class Refit {
 public:
  Refit(Exec& ex, const RefineArgs& a, const MutableCodedView& q, const GroupOrder& by_group, int64_t most)
      : ex_(ex),
        s_(ex.cuda_state()),
        a_(a),
        q_(q),
        by_group_(by_group),
        n_(q.codes.cols()),
        groups_(by_group.groups()) {
    std::vector<int32_t> at(static_cast<size_t>(n_));
    for (int64_t g = 0; g < groups_; ++g)
      std::fill(at.begin() + by_group.begin(g), at.begin() + by_group.end(g), static_cast<int32_t>(g));
    order_ = upload(ex, by_group.order);
    group_at_ = upload(ex, at);
    start_ = upload(ex, by_group.start);
    int64_t strip = 1;
    for (int64_t g = 0; g < groups_; ++g)
      strip = std::max(strip, refit_strip(Device::cuda, by_group.end(g) - by_group.begin(g), n_));
    strip_ = ex.alloc(DType::f64, {strip});
    factor_ = ex.alloc(DType::f64, {most, n_});
    level_ = ex.alloc(DType::f32, {most, n_});
    target_ = ex.alloc(DType::f32, {most, n_});
    z_ = ex.alloc(DType::f64, {most, n_});
    a_rows_ = ex.alloc(DType::f64, {most, groups_, groups_});
    b_rows_ = ex.alloc(DType::f64, {most, groups_});
    lists_ = ex.alloc(DType::u64, {2, most});
    info_ = ex.alloc_zeros(DType::i32, {most + 1});
  }

  void run(int64_t begin, int64_t rows) {
    CodedArrays<false> here(read_only(q_));
    here.codes += here.index(begin, 0);
    if (here.zeros) here.zeros += here.grid_index(begin, 0);
    gather_rows_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s_.stream>>>(
        here, a_.target.as<float>() + begin * n_, order_.as<int32_t>(), group_at_.as<int32_t>(), factor_.as<double>(),
        level_.as<float>(), target_.as<float>());
    FEWBIT_CUDA_LAUNCHED();
    for (int64_t g = 0; g < groups_; ++g) normal_row(g, rows);
    solve(rows, q_.scales.as<float>() + begin * groups_);
  }

 private:
  // The systems of `rows` rows, and their solutions into the scales `s` of these rows where they are better.
  void solve(int64_t rows, float* s) {
    auto** a_list = reinterpret_cast<double**>(lists_.as<uint64_t>());
    double** b_list = a_list + rows;
    mend_kernel<<<grid_for(rows * groups_, kThreads), kThreads, 0, s_.stream>>>(
        a_rows_.as<double>(), b_rows_.as<double>(), s, a_list, b_list, rows, static_cast<int>(groups_));
    FEWBIT_CUDA_LAUNCHED();
    const int order = static_cast<int>(groups_), batch = static_cast<int>(rows);
    FEWBIT_CUSOLVER_CALL(
        cusolverDnDpotrfBatched(s_.solver(), CUBLAS_FILL_MODE_LOWER, order, a_list, order, info_.as<int32_t>(), batch));
    FEWBIT_CUSOLVER_CALL(cusolverDnDpotrsBatched(s_.solver(), CUBLAS_FILL_MODE_LOWER, order, 1, a_list, order, b_list,
                                                 order, info_.as<int32_t>() + info_.numel() - 1, batch));
    accept_kernel<<<static_cast<unsigned>(rows), kThreads, static_cast<size_t>(2 * groups_) * sizeof(double),
                    s_.stream>>>(a_rows_.as<double>(), b_rows_.as<double>(), info_.as<int32_t>(), s, order,
                                 a_.scale_dtype);
    FEWBIT_CUDA_LAUNCHED();
  }

  // Row g of the normal equations of every row.
  void normal_row(int64_t g, int64_t rows) {
    const int64_t first = by_group_.begin(g), width = by_group_.end(g) - first;
    const double one = 1, zero = 0;
    if (width == 0) ex_.zero(z_);
    const WideCut cut{.n = n_, .rows = rows, .cols = strip_columns(Device::cuda, width, n_)};
    for (int64_t i = 0; width > 0 && i < cut.strips(); ++i) {
      const int64_t begin = cut.begin(i), end = cut.end(i), cols = end - begin;
      gather_gram_kernel<<<static_cast<unsigned>(width), kThreads, 0, s_.stream>>>(
          a_.h.as<float>(), order_.as<int32_t>(), strip_.as<double>(), n_, first, begin, end);
      FEWBIT_CUDA_LAUNCHED();
      // Row-major Z = C_g H_g is Z^T = H_g^T C_g^T column-major.
      FEWBIT_CUBLAS_CALL(cublasDgemm_64(s_.blas, CUBLAS_OP_N, CUBLAS_OP_N, cols, rows, width, &one, strip_.as<double>(),
                                        cols, factor_.as<double>() + first, n_, &zero, z_.as<double>() + begin, n_));
    }
    normal_row_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s_.stream>>>(
        z_.as<double>(), level_.as<float>(), target_.as<float>(), start_.as<int32_t>(), a_rows_.as<double>(),
        b_rows_.as<double>(), n_, static_cast<int>(groups_), static_cast<int>(g));
    FEWBIT_CUDA_LAUNCHED();
  }

  Exec& ex_;
  CudaState& s_;
  const RefineArgs& a_;
  const MutableCodedView& q_;
  const GroupOrder& by_group_;
  int64_t n_, groups_;
  Tensor order_{}, group_at_{}, start_{};  // i32
  Tensor strip_{}, factor_{}, z_{};        // f64: of H what a product needs, levels, Z_g
  Tensor level_{}, target_{};              // f32, in group order
  Tensor a_rows_{}, b_rows_{}, lists_{}, info_{};
};

}  // namespace

void refit_scales(Exec& ex, const RefineArgs& args, const MutableCodedView& q) {
  const int64_t out = q.codes.rows(), n = q.codes.cols(), groups = q.scales.cols();
  if (out == 0) return;
  const int64_t most = refit_rows(Device::cuda, out, n, groups);
  const GroupOrder by_group = order_by_group(ex, q);
  Refit refit(ex, args, q, by_group, most);
  for (int64_t begin = 0; begin < out; begin += most) refit.run(begin, std::min(most, out - begin));
}

}  // namespace fewbit::cuda
