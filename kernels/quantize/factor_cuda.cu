// The factor of the damped Gram matrix by cuSOLVER: the matrix reversed (reversing the memory of a square matrix
// reverses its rows and columns), one potrf, and reversed back; in f32 in place. cuSOLVER sees matrices column-major:
// its upper factor is the lower one of the same memory read row-major.
#include <algorithm>
#include <vector>

#include "kernels/device/vec.cuh"
#include "kernels/device/widen.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/factor.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
enum Flag : int { kInfo, kNonfinite, kFlags };

// r holds h: r[k] = h[last - k], damped; flags[kNonfinite] is raised where an entry is not finite. Each thread swaps
// two entries; the middle one of an odd count is swapped with itself, and damped once.
__global__ void reverse_kernel(float* r, int* flags, float lambda, int64_t n) {
  const int64_t last = n * n - 1, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k <= last / 2; k += step) {
    const float low = r[k], high = r[last - k], add = k % (n + 1) == 0 ? lambda : 0.f;
    if (!isfinite(low) || !isfinite(high)) flags[kNonfinite] = 1;
    r[k] = high + add;
    r[last - k] = low + add;
  }
}

// r holds the reversed factor: reversed, and zero below its own diagonal; a diagonal that is not finite raises the
// flag.
__global__ void reverse_factor_kernel(float* r, int* flags, int64_t n) {
  const int64_t last = n * n - 1, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k <= last / 2; k += step) {
    const int64_t i = k / n, j = k % n;  // the other one is at (n - 1 - i, n - 1 - j)
    const float low = r[k], high = r[last - k];
    if (i == j && !(isfinite(low) && isfinite(high))) flags[kNonfinite] = 1;
    r[k] = j < i ? 0.f : high;
    r[last - k] = i < j ? 0.f : low;
  }
}

// a[k] = h[last - k], damped, and flags as above.
__global__ void reversed_copy_kernel(const float* __restrict__ h, double* __restrict__ a, int* flags, double lambda,
                                     int64_t n) {
  const int64_t last = n * n - 1, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k <= last; k += step) {
    const float v = h[last - k];
    if (!isfinite(v)) flags[kNonfinite] = 1;
    a[k] = static_cast<double>(v) + (k % (n + 1) == 0 ? lambda : 0.0);
  }
}

// r = the reversed lower triangle of a, zero below its own diagonal, and flags as above.
__global__ void reversed_factor_kernel(const double* __restrict__ a, float* __restrict__ r, int* flags, int64_t n) {
  const int64_t last = n * n - 1, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k <= last; k += step) {
    const int64_t i = k / n, j = k % n;
    const float v = j < i ? 0.f : static_cast<float>(a[last - k]);
    if (i == j && !isfinite(v)) flags[kNonfinite] = 1;
    r[k] = v;
  }
}

// The f64 system of shift_targets: a = gram, mended and damped; flags as above, of cross as well.
__global__ void shift_system_kernel(const float* __restrict__ cross, const float* __restrict__ gram,
                                    double* __restrict__ a, int* flags, double lambda, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < n * n; k += step) {
    const double g = gram[k];
    if (!isfinite(g) || !isfinite(cross[k])) flags[kNonfinite] = 1;
    a[k] = k % (n + 1) != 0 ? g : (g == 0 ? 1.0 : g) + lambda;
  }
}

__global__ void widen_kernel(const float* __restrict__ from, double* __restrict__ to, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step) to[k] = from[k];
}

__global__ void add_shift_kernel(const float* __restrict__ w, const double* __restrict__ shift,
                                 float* __restrict__ target, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step)
    target[k] = static_cast<float>(w[k] + shift[k]);
}

__global__ void narrow_kernel(const double* __restrict__ from, float* __restrict__ to, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step)
    to[k] = static_cast<float>(from[k]);
}

// The identity on a [n, n] that holds zeros, rows ld apart.
__global__ void one_diagonal_kernel(double* a, int64_t n, int64_t ld) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) a[i * (ld + 1)] = 1;
}

unsigned blocks_for(int64_t count) { return grid_for(count, kThreads, 8192); }

// What potrf and the kernels around it report, on the device.
class Flags {
 public:
  explicit Flags(Exec& ex) : ex_(ex), flags_(ex.alloc_zeros(DType::i32, {kFlags})) {}
  int* data() { return flags_.as<int32_t>(); }
  FactorStatus status() {
    const Tensor host = ex_.to_host(flags_);
    const int info = host.as<int32_t>()[kInfo];
    if (info < 0) bug("cuSOLVER's potrf was called with a wrong argument");
    return {host.as<int32_t>()[kNonfinite] ? 1 : info};
  }

 private:
  Exec& ex_;
  Tensor flags_;
};

// In-place Cholesky of [n, n]; its info lands in flags.
void potrf(Exec& ex, cudaDataType_t type, void* a, int64_t n, Flags& flags) {
  CudaState& s = ex.cuda_state();
  size_t on_device = 0, on_host = 0;
  FEWBIT_CUSOLVER_CALL(cusolverDnXpotrf_bufferSize(s.solver(), nullptr, CUBLAS_FILL_MODE_UPPER, n, type, a, n, type,
                                                   &on_device, &on_host));
  const Tensor room = ex.alloc(DType::u8, {static_cast<int64_t>(on_device) + 1});
  std::vector<char> host_room(on_host + 1);
  FEWBIT_CUSOLVER_CALL(cusolverDnXpotrf(s.solver(), nullptr, CUBLAS_FILL_MODE_UPPER, n, type, a, n, type,
                                        room.view().data, on_device, host_room.data(), on_host, flags.data() + kInfo));
}

// r holds h, and in the end its factor.
FactorStatus factorize_f32(Exec& ex, float lambda, int64_t n, float* r) {
  CudaState& s = ex.cuda_state();
  Flags flags(ex);
  reverse_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(r, flags.data(), lambda, n);
  FEWBIT_CUDA_LAUNCHED();
  potrf(ex, CUDA_R_32F, r, n, flags);
  if (const FactorStatus status = flags.status(); !status.ok()) return status;
  reverse_factor_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(r, flags.data(), n);
  FEWBIT_CUDA_LAUNCHED();
  return flags.status();
}

FactorStatus factorize_f64(Exec& ex, const float* h, float lambda, int64_t n, float* r) {
  CudaState& s = ex.cuda_state();
  const Tensor a = ex.alloc(DType::f64, {n, n});
  Flags flags(ex);
  reversed_copy_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(h, a.as<double>(), flags.data(), lambda, n);
  FEWBIT_CUDA_LAUNCHED();
  potrf(ex, CUDA_R_64F, a.as<double>(), n, flags);
  if (const FactorStatus status = flags.status(); !status.ok()) return status;
  reversed_factor_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(a.as<double>(), r, flags.data(), n);
  FEWBIT_CUDA_LAUNCHED();
  return flags.status();
}

}  // namespace

FactorStatus factorize(Exec& ex, ConstTensorView h, float lambda, Precision precision, TensorView r,
                       const PanelShare& share) {
  FEWBIT_ASSERT(share.alone());
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && r.rows() == n && r.cols() == n);
  if (precision == Precision::f64) return factorize_f64(ex, h.as<float>(), lambda, n, r.as<float>());
  if (h.data != r.data) ex.copy(h, r);
  return factorize_f32(ex, lambda, n, r.as<float>());
}

namespace {

// Solves X L L^T = B for many rows of B, with L [n, n] as potrf leaves it: the lower triangle, row-major. Block by
// block of kSolveCols columns, by products alone, for which the blocks on L's diagonal are inverted first: a library's
// solver walks columns in turn and reaches a third of a product's rate.
class WideSolve {
 public:
  WideSolve(Exec& ex, const Tensor& l, int64_t rows)
      : s_(ex.cuda_state()),
        l_(l.as<double>()),
        n_(l.cols()),
        inverse_(ex.alloc_zeros(DType::f64, {(n_ + kSolveCols - 1) / kSolveCols, kSolveCols, kSolveCols})),
        room_(ex.alloc(DType::f64, {rows, kSolveCols})) {
    const double one = 1;
    for (int64_t j = 0; j < n_; j += kSolveCols) {
      double* to = inverse(j);
      one_diagonal_kernel<<<1, kThreads, 0, s_.stream>>>(to, width(j), width(j));
      FEWBIT_CUDA_LAUNCHED();
      // Row-major L_jj is U = L_jj^T column-major, and U^-1 column-major is L_jj^-1 row-major.
      FEWBIT_CUBLAS_CALL(cublasDtrsm_64(s_.blas, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N,
                                        CUBLAS_DIAG_NON_UNIT, width(j), width(j), &one, l_ + j * n_ + j, n_, to,
                                        width(j)));
    }
  }

  // x [rows, n]: B, then X.
  void run(double* x, int64_t rows) const {
    for (int64_t j = 0; j < n_; j += kSolveCols) {  // Y L^T = B
      subtract(x, rows, 0, j, j, CUBLAS_OP_T, l_ + j * n_);
      divide(x, rows, j, CUBLAS_OP_T);
    }
    for (int64_t j = (n_ - 1) / kSolveCols * kSolveCols; j >= 0; j -= kSolveCols) {  // X L = Y
      const int64_t end = j + width(j);
      subtract(x, rows, end, n_, j, CUBLAS_OP_N, l_ + end * n_ + j);
      divide(x, rows, j, CUBLAS_OP_N);
    }
  }

 private:
  int64_t width(int64_t j) const { return std::min(kSolveCols, n_ - j); }
  double* inverse(int64_t j) const { return inverse_.as<double>() + j * kSolveCols; }

  // x[:, j block] -= x[:, from:to] M, with M [to - from, width] a part of L or, by OP_T, the transposed of one.
  void subtract(double* x, int64_t rows, int64_t from, int64_t to, int64_t j, cublasOperation_t op,
                const double* m) const {
    if (from == to) return;
    const double minus = -1, one = 1;
    FEWBIT_CUBLAS_CALL(cublasDgemm_64(s_.blas, op, CUBLAS_OP_N, width(j), rows, to - from, &minus, m, n_, x + from, n_,
                                      &one, x + j, n_));
  }

  // x[:, j block] times L_jj^-1 or, by OP_T, L_jj^-T.
  void divide(double* x, int64_t rows, int64_t j, cublasOperation_t op) const {
    const double one = 1, zero = 0;
    const int64_t w = width(j);
    FEWBIT_CUBLAS_CALL(cublasDgemm_64(s_.blas, op, CUBLAS_OP_N, w, rows, w, &one, inverse(j), w, x + j, n_, &zero,
                                      room_.as<double>(), w));
    const size_t bytes = static_cast<size_t>(w) * sizeof(double);
    FEWBIT_CUDA_CALL(cudaMemcpy2DAsync(x + j, static_cast<size_t>(n_) * sizeof(double), room_.as<double>(), bytes,
                                       bytes, static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, s_.stream));
  }

  CudaState& s_;
  const double* l_;
  int64_t n_;
  Tensor inverse_, room_;
};

// The factor of the system of a shift into a; the status of the factorisation.
FactorStatus factor_system(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, const Tensor& a) {
  const int64_t n = gram.cols();
  FEWBIT_ASSERT(cross.rows() == n && cross.cols() == n && gram.shape == cross.shape);
  Flags flags(ex);
  shift_system_kernel<<<blocks_for(n * n), kThreads, 0, ex.cuda_state().stream>>>(
      cross.as<float>(), gram.as<float>(), a.as<double>(), flags.data(), lambda, n);
  FEWBIT_CUDA_LAUNCHED();
  potrf(ex, CUDA_R_64F, a.as<double>(), n, flags);
  return flags.status();
}

// Adds what stands in `shift` to rows of w.
void add_shift(CudaState& s, ConstTensorView w, const double* shift, TensorView target, int64_t begin, int64_t rows) {
  const int64_t n = w.cols();
  add_shift_kernel<<<blocks_for(rows * n), kThreads, 0, s.stream>>>(w.as<float>() + begin * n, shift,
                                                                    target.as<float>() + begin * n, rows * n);
  FEWBIT_CUDA_LAUNCHED();
}

// shift = rows [begin, begin + rows) of w times M, in f64.
void wide_rows(Exec& ex, ConstTensorView w, int64_t begin, int64_t rows, const WideCut& cut, const WideMatrix& m,
               const Tensor& wide, const Tensor& strip, const Tensor& shift) {
  widen_kernel<<<blocks_for(rows * cut.n), kThreads, 0, ex.cuda_state().stream>>>(w.as<float>() + begin * cut.n,
                                                                                  wide.as<double>(), rows * cut.n);
  FEWBIT_CUDA_LAUNCHED();
  wide_product(ex, wide.as<double>(), rows, cut, m, strip.as<double>(), shift.as<double>());
}

}  // namespace

// The cut depends on the shape of the weight alone, and so do the kernels that cuBLAS and cuSOLVER choose: the bits are
// those of every run on this shape, whatever memory there is.
FactorStatus shift_targets(Exec& ex, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           TensorView target, const PanelShare& share) {
  FEWBIT_ASSERT(share.alone());
  const int64_t out = w.rows(), n = w.cols();
  FEWBIT_ASSERT(gram.cols() == n && target.shape == w.shape);
  const Tensor a = ex.alloc(DType::f64, {n, n});
  if (const FactorStatus status = factor_system(ex, cross, gram, lambda, a); !status.ok()) return status;
  const WideCut cut = square_cut(Device::cuda, out, n);
  const WideSolve solve(ex, a, cut.rows);
  const Tensor wide = ex.alloc(DType::f64, {cut.rows, n}), shift = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  for (int64_t begin = 0; begin < out; begin += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - begin);
    wide_rows(ex, w, begin, rows, cut, {cross.as<float>(), gram.as<float>()}, wide, strip, shift);
    solve.run(shift.as<double>(), rows);
    add_shift(ex.cuda_state(), w, shift.as<double>(), target, begin, rows);
  }
  return {};
}

FactorStatus shift_matrix(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, TensorView m) {
  const int64_t n = gram.cols();
  FEWBIT_ASSERT(m.shape == gram.shape);
  CudaState& s = ex.cuda_state();
  const Tensor a = ex.alloc(DType::f64, {n, n});
  if (const FactorStatus status = factor_system(ex, cross, gram, lambda, a); !status.ok()) return status;
  const WideCut cut = square_cut(Device::cuda, n, n);
  const WideSolve solve(ex, a, cut.rows);
  const Tensor wide = ex.alloc(DType::f64, {cut.rows, n});
  for (int64_t begin = 0; begin < n; begin += cut.rows) {
    const int64_t rows = std::min(cut.rows, n - begin);
    widen_strip_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s.stream>>>(
        cross.as<float>() + begin * n, gram.as<float>() + begin * n, wide.as<double>(), n, 0, n);
    FEWBIT_CUDA_LAUNCHED();
    solve.run(wide.as<double>(), rows);
    narrow_kernel<<<blocks_for(rows * n), kThreads, 0, s.stream>>>(wide.as<double>(), m.as<float>() + begin * n,
                                                                   rows * n);
    FEWBIT_CUDA_LAUNCHED();
  }
  return {};
}

void apply_shift(Exec& ex, ConstTensorView w, ConstTensorView m, TensorView target) {
  const int64_t out = w.rows(), n = w.cols();
  FEWBIT_ASSERT(m.rows() == n && m.cols() == n && target.shape == w.shape);
  const WideCut cut = square_cut(Device::cuda, out, n);
  const Tensor wide = ex.alloc(DType::f64, {cut.rows, n}), shift = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  for (int64_t begin = 0; begin < out; begin += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - begin);
    wide_rows(ex, w, begin, rows, cut, {m.as<float>(), nullptr}, wide, strip, shift);
    add_shift(ex.cuda_state(), w, shift.as<double>(), target, begin, rows);
  }
}

}  // namespace fewbit::cuda
