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

// The cut depends on the shape of the weight alone, and so do the kernels that cuBLAS and cuSOLVER choose: the bits are
// those of every run on this shape, whatever memory there is.
FactorStatus shift_targets(Exec& ex, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           TensorView target, const PanelShare& share) {
  FEWBIT_ASSERT(share.alone());
  const int64_t out = w.rows(), n = w.cols();
  FEWBIT_ASSERT(cross.rows() == n && cross.cols() == n && gram.shape == cross.shape && target.shape == w.shape);
  CudaState& s = ex.cuda_state();
  const Tensor a = ex.alloc(DType::f64, {n, n});
  Flags flags(ex);
  shift_system_kernel<<<blocks_for(n * n), kThreads, 0, s.stream>>>(cross.as<float>(), gram.as<float>(), a.as<double>(),
                                                                    flags.data(), lambda, n);
  FEWBIT_CUDA_LAUNCHED();
  potrf(ex, CUDA_R_64F, a.as<double>(), n, flags);
  if (const FactorStatus status = flags.status(); !status.ok()) return status;
  const WideCut cut = square_cut(Device::cuda, out, n);
  const Tensor wide = ex.alloc(DType::f64, {cut.rows, n}), shift = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  for (int64_t begin = 0; begin < out; begin += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - begin);
    widen_kernel<<<blocks_for(rows * n), kThreads, 0, s.stream>>>(w.as<float>() + begin * n, wide.as<double>(),
                                                                  rows * n);
    FEWBIT_CUDA_LAUNCHED();
    wide_product(ex, wide.as<double>(), rows, cut, {cross.as<float>(), gram.as<float>()}, strip.as<double>(),
                 shift.as<double>());
    // The rows of X are the right-hand sides of a symmetric system.
    FEWBIT_CUSOLVER_CALL(cusolverDnXpotrs(s.solver(), nullptr, CUBLAS_FILL_MODE_UPPER, n, rows, CUDA_R_64F,
                                          a.as<double>(), n, CUDA_R_64F, shift.as<double>(), n, flags.data() + kInfo));
    add_shift_kernel<<<blocks_for(rows * n), kThreads, 0, s.stream>>>(w.as<float>() + begin * n, shift.as<double>(),
                                                                      target.as<float>() + begin * n, rows * n);
    FEWBIT_CUDA_LAUNCHED();
  }
  return {};
}

}  // namespace fewbit::cuda
