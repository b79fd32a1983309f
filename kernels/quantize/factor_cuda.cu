// The factor of the damped Gram matrix by cuSOLVER: the matrix reversed (reversing the memory of a square matrix
// reverses its rows and columns), one potrf, and reversed back; in f32 in place. cuSOLVER sees matrices column-major:
// its upper factor is the lower one of the same memory read row-major.
#include <algorithm>
#include <vector>

#include "kernels/device/split_product.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/panel_factor.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
enum Flag : int { kNonfinite, kInfo };  // one of the latter for each factor that potrf makes

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

// The f64 system of a shift, reversed as in factorize(): a[k] = gram[last - k], mended and damped; flags as above, of
// cross as well.
__global__ void shift_system_kernel(const float* __restrict__ cross, const float* __restrict__ gram,
                                    double* __restrict__ a, int* flags, double lambda, int64_t n) {
  const int64_t last = n * n - 1, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k <= last; k += step) {
    const double g = gram[last - k];
    if (!isfinite(g) || !isfinite(cross[k])) flags[kNonfinite] = 1;
    a[k] = k % (n + 1) != 0 ? g : (g == 0 ? 1.0 : g) + lambda;
  }
}

// The terms of columns [begin, begin + cols) of cross - gram with its columns reversed, rows [0, gridDim.x); a block
// per row.
__global__ void difference_terms_kernel(const float* __restrict__ cross, const float* __restrict__ gram, SplitTerms to,
                                        int64_t n, int64_t begin, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t j = threadIdx.x; j < cols; j += kThreads) {
    const int64_t from = row * n + n - 1 - begin - j, at = row * to.ld + j;
    split_value(cross[from] - gram[from], to.high[at], to.low[at]);
  }
}

// to [gridDim.x, n] = rows of cross - gram with the columns reversed; a block per row.
__global__ void difference_kernel(const float* __restrict__ cross, const float* __restrict__ gram,
                                  float* __restrict__ to, int64_t n) {
  const int64_t row = blockIdx.x * n;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) to[row + n - 1 - j] = cross[row + j] - gram[row + j];
}

// The terms of the reversed factor [n, n], whose rows are those of r from the end; a block per row.
__global__ void reversed_terms_kernel(const float* __restrict__ r, SplitTerms to, int64_t n) {
  const int64_t row = blockIdx.x;
  for (int64_t j = threadIdx.x; j < n; j += kThreads)
    split_value(r[n * n - 1 - (row * n + j)], to.high[row * to.ld + j], to.low[row * to.ld + j]);
}

// The terms of f64 values, each rounded to f32 before.
__global__ void narrow_terms_kernel(const double* __restrict__ from, __nv_bfloat16* __restrict__ high,
                                    __nv_bfloat16* __restrict__ low, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step)
    split_value(static_cast<float>(from[k]), high[k], low[k]);
}

// x [gridDim.x, n] = base, or nothing where it is null, plus share times x with its columns reversed; a block per row.
__global__ void reverse_rows_kernel(const float* __restrict__ base, float* __restrict__ x, float share, int64_t n) {
  const int64_t row = blockIdx.x * n;
  for (int64_t j = threadIdx.x; j < (n + 1) / 2; j += kThreads) {
    const int64_t k = n - 1 - j;
    const float low = share * x[row + j], high = share * x[row + k];
    x[row + j] = high + (base ? base[row + j] : 0.f);
    x[row + k] = low + (base ? base[row + k] : 0.f);
  }
}

// x [gridDim.x, n] += more with its columns reversed; a block per row.
__global__ void add_reversed_kernel(const float* __restrict__ more, float* __restrict__ x, int64_t n) {
  const int64_t row = blockIdx.x * n;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) x[row + n - 1 - j] += more[row + j];
}

__global__ void add_kernel(const float* __restrict__ w, float* __restrict__ target, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step) target[k] += w[k];
}

unsigned blocks_for(int64_t count) { return grid_for(count, kThreads, 8192); }

// What potrf and the kernels around it report, on the device. Of several factors on the diagonal of a system each is
// `step` columns behind the one before.
class Flags {
 public:
  explicit Flags(Exec& ex, int64_t factors = 1, int64_t step = 0)
      : ex_(ex), flags_(ex.alloc_zeros(DType::i32, {kInfo + factors})), step_(step) {}
  int* data() { return flags_.as<int32_t>(); }
  int* info() { return data() + kInfo; }
  FactorStatus status() {
    const Tensor host = ex_.to_host(flags_);
    const int32_t* told = host.as<int32_t>();
    if (told[kNonfinite]) return {1};
    for (int64_t i = kInfo; i < host.numel(); ++i) {
      if (told[i] < 0) bug("cuSOLVER's potrf was called with a wrong argument");
      if (told[i] > 0) return {(i - kInfo) * step_ + told[i]};
    }
    return {};
  }

 private:
  Exec& ex_;
  Tensor flags_;
  int64_t step_;
};

// r holds h, and in the end its factor.
FactorStatus factorize_f32(Exec& ex, float lambda, int64_t n, float* r) {
  CudaState& s = ex.cuda_state();
  Flags flags(ex);
  reverse_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(r, flags.data(), lambda, n);
  FEWBIT_CUDA_LAUNCHED();
  potrf(ex, CUDA_R_32F, r, n, n, flags.info());
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
  potrf(ex, CUDA_R_64F, a.as<double>(), n, n, flags.info());
  if (const FactorStatus status = flags.status(); !status.ok()) return status;
  reversed_factor_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(a.as<double>(), r, flags.data(), n);
  FEWBIT_CUDA_LAUNCHED();
  return flags.status();
}

}  // namespace

// Every process of a share makes it alike.
FactorStatus factorize(Exec& ex, ConstTensorView h, float lambda, Precision precision, TensorView r,
                       const PanelShare& /*share*/) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && r.rows() == n && r.cols() == n);
  if (precision == Precision::f64) return factorize_f64(ex, h.as<float>(), lambda, n, r.as<float>());
  if (h.data != r.data) ex.copy(h, r);
  return factorize_f32(ex, lambda, n, r.as<float>());
}

namespace {

// The system of a shift, gram mended and damped, factored: r as factorize() leaves it in f64, and what solves by it.
class ShiftSystem {
 public:
  ShiftSystem(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, const PanelShare& share)
      : ex_(ex), s_(ex.cuda_state()), n_(gram.cols()) {
    FEWBIT_ASSERT(cross.rows() == n_ && cross.cols() == n_ && gram.shape == cross.shape);
    const Tensor a = ex.alloc(DType::f64, {n_, n_});
    const bool whole = n_ <= PanelFactor::kNarrow;
    Flags flags(ex, whole ? 1 : PanelFactor::panels(n_), PanelFactor::kPanel);
    shift_system_kernel<<<blocks_for(n_ * n_), kThreads, 0, s_.stream>>>(cross.as<float>(), gram.as<float>(),
                                                                         a.as<double>(), flags.data(), lambda, n_);
    FEWBIT_CUDA_LAUNCHED();
    SolveInverses inverses(ex, a);
    if (whole)
      potrf(ex, CUDA_R_64F, a.as<double>(), n_, n_, flags.info());
    else
      PanelFactor(ex, a, inverses, share).run(flags.info());
    status = flags.status();
    if (!status.ok()) return;
    if (whole) inverses.add(0, n_);
    inverse_ = ex.alloc(DType::bf16, {2, inverses.numel()});
    __nv_bfloat16* high = inverse_.as<__nv_bfloat16>();
    narrow_terms_kernel<<<blocks_for(inverses.numel()), kThreads, 0, s_.stream>>>(
        inverses.data(), high, high + inverses.numel(), inverses.numel());
    FEWBIT_CUDA_LAUNCHED();
    r = ex.alloc(DType::f32, {n_, n_});
    // A factor that is finite in f64 and not in f32 is found where it is used: what it gives is not finite.
    reversed_factor_kernel<<<blocks_for(n_ * n_), kThreads, 0, s_.stream>>>(a.as<double>(), r.as<float>(), flags.data(),
                                                                            n_);
    FEWBIT_CUDA_LAUNCHED();
  }

  // x [rows, n] f32 with its columns reversed: B, then X with X L L^T = B, where L is the factor of the reversed
  // system. Block by block of kSolveCols columns, by products of bf16 terms.
  void solve(float* x, int64_t rows) const {
    const SplitMatrix l_room(ex_, n_, n_), x_room(ex_, rows, n_);
    const SplitTerms l = l_room.terms(), terms = x_room.terms();
    reversed_terms_kernel<<<static_cast<unsigned>(n_), kThreads, 0, s_.stream>>>(r.as<float>(), l, n_);
    FEWBIT_CUDA_LAUNCHED();
    for (int64_t j = 0; j < n_; j += kSolveCols) {  // Y L^T = B
      if (j > 0)
        split_product(s_, terms, l.at(j, 0), rows, j, width(j), x + j, n_,
                      {.alpha = -1, .beta = 1, .transposed = true});
      divide(x, rows, j, terms, true);
    }
    for (int64_t j = (n_ - 1) / kSolveCols * kSolveCols; j >= 0; j -= kSolveCols) {  // X L = Y
      const int64_t end = j + width(j);
      if (end < n_)
        split_product(s_, terms.at(0, end), l.at(end, j), rows, n_ - end, width(j), x + j, n_,
                      {.alpha = -1, .beta = 1});
      divide(x, rows, j, terms, false);
    }
  }

  FactorStatus status{};
  Tensor r{};  // [n, n] f32

 private:
  int64_t width(int64_t j) const { return std::min(kSolveCols, n_ - j); }

  // The block of columns j times L_jj^-1 or its transpose, in x and in its terms.
  void divide(float* x, int64_t rows, int64_t j, const SplitTerms& terms, bool transposed) const {
    const int64_t w = width(j), blocks = inverse_.numel() / 2;
    __nv_bfloat16* high = inverse_.as<__nv_bfloat16>() + j * kSolveCols;
    const SplitTerms by{high, high + blocks, kSolveCols}, here = terms.at(0, j);
    split(s_, x + j, n_, rows, w, here);
    split_product(s_, here, by, rows, w, w, x + j, n_, {.transposed = transposed});
    split(s_, x + j, n_, rows, w, here);
  }

  Exec& ex_;
  CudaState& s_;
  int64_t n_;
  Tensor inverse_{};  // bf16: terms of the blocks' inverses
};

// target [out, n] = w M [n, n] on bf16 terms; terms_of(begin, cols, strip) makes those of columns of M.
template <class TermsOf>
void product_with_terms(Exec& ex, ConstTensorView w, TensorView target, const TermsOf& terms_of) {
  const int64_t out = w.rows(), n = w.cols(), panel = shift_rows(out, n), widest = std::min(n, kShiftCols);
  CudaState& s = ex.cuda_state();
  const SplitMatrix rows(ex, panel, n), strip(ex, n, widest);
  for (int64_t first = 0; first < out; first += panel) {
    const int64_t count = std::min(panel, out - first);
    split(s, w.as<float>() + first * n, n, count, n, rows.terms());
    for (int64_t begin = 0; begin < n; begin += widest) {
      const int64_t cols = std::min(widest, n - begin);
      terms_of(begin, cols, strip.terms());
      split_product(s, rows.terms(), strip.terms(), count, n, cols, target.as<float>() + first * n + begin, n);
    }
  }
}

// x [rows, n] f32 with reversed columns: right sides, then base, or nothing where it is null, plus `share` of the
// solutions.
void solve_rows(Exec& ex, const ShiftSystem& system, const float* base, float* x, float share, int64_t rows,
                int64_t n) {
  const int64_t panel = shift_rows(rows, n);
  for (int64_t begin = 0; begin < rows; begin += panel) {
    const int64_t count = std::min(panel, rows - begin);
    system.solve(x + begin * n, count);
    reverse_rows_kernel<<<static_cast<unsigned>(count), kThreads, 0, ex.cuda_state().stream>>>(
        base ? base + begin * n : nullptr, x + begin * n, share, n);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace

// The kernels that cuBLAS and cuSOLVER choose depend on the width of the weight alone: the bits of a row are those of
// every run on this width, whatever memory and however many rows there are.
FactorStatus shift_targets(Exec& ex, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           ConstTensorView more, float share, TensorView target, const PanelShare& panels, Tensor* r) {
  const int64_t n = w.cols();
  FEWBIT_ASSERT(gram.cols() == n && target.shape == w.shape && (!more.data || more.shape == w.shape));
  CudaState& s = ex.cuda_state();
  ShiftSystem system(ex, cross, gram, lambda, panels);
  if (!system.status.ok()) return system.status;
  product_with_terms(ex, w, target, [&](int64_t begin, int64_t cols, const SplitTerms& strip) {
    difference_terms_kernel<<<static_cast<unsigned>(n), kThreads, 0, s.stream>>>(cross.as<float>(), gram.as<float>(),
                                                                                 strip, n, begin, cols);
    FEWBIT_CUDA_LAUNCHED();
  });
  if (more.data) {
    add_reversed_kernel<<<static_cast<unsigned>(w.rows()), kThreads, 0, s.stream>>>(more.as<float>(),
                                                                                    target.as<float>(), n);
    FEWBIT_CUDA_LAUNCHED();
  }
  solve_rows(ex, system, w.as<float>(), target.as<float>(), share, w.rows(), n);
  if (r) *r = std::move(system.r);
  return {};
}

FactorStatus shift_matrix(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, float share,
                          TensorView m, Tensor* r) {
  const int64_t n = gram.cols();
  FEWBIT_ASSERT(m.shape == gram.shape);
  ShiftSystem system(ex, cross, gram, lambda, {});
  if (!system.status.ok()) return system.status;
  difference_kernel<<<static_cast<unsigned>(n), kThreads, 0, ex.cuda_state().stream>>>(
      cross.as<float>(), gram.as<float>(), m.as<float>(), n);
  FEWBIT_CUDA_LAUNCHED();
  solve_rows(ex, system, nullptr, m.as<float>(), share, n, n);
  if (r) *r = std::move(system.r);
  return {};
}

void apply_shift(Exec& ex, ConstTensorView w, ConstTensorView m, TensorView target) {
  const int64_t n = w.cols();
  FEWBIT_ASSERT(m.rows() == n && m.cols() == n && target.shape == w.shape);
  CudaState& s = ex.cuda_state();
  product_with_terms(ex, w, target, [&](int64_t begin, int64_t cols, const SplitTerms& strip) {
    split(s, m.as<float>() + begin, n, n, cols, strip);
  });
  add_kernel<<<blocks_for(w.numel()), kThreads, 0, s.stream>>>(w.as<float>(), target.as<float>(), w.numel());
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
