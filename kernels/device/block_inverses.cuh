#pragma once
// BlockInverses: the inverses of the blocks on the diagonal of a triangular factor, for solutions by products alone.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

// The identity on [n, n] of zeros, rows ld apart.
static __global__ void one_diagonal_kernel(double* a, int64_t n, int64_t ld) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) a[i * (ld + 1)] = 1;
}

// The inverses of lower tiles [kTile, kTile] on the diagonal of blocks of kCols columns, by substitution: a block per
// tile, a thread per column. l: the first block, ld apart its rows; inverse: zero above the diagonals.
template <int64_t kCols, int64_t kTile>
__global__ void __launch_bounds__(kTile)
    invert_lower_kernel(const double* __restrict__ l, int64_t ld, double* __restrict__ inverse) {
  constexpr int kTiles = kCols / kTile;
  const int64_t block = blockIdx.x / kTiles, first = blockIdx.x % kTiles * kTile;
  const double* tile = l + (block * kCols + first) * (ld + 1);
  double* x = inverse + block * kCols * kCols + first * (kCols + 1) + threadIdx.x;
  const int k = threadIdx.x;
  for (int i = k; i < kTile; ++i) {
    double sum = i == k ? 1.0 : 0.0;
    for (int j = k; j < i; ++j) sum -= tile[i * ld + j] * x[static_cast<int64_t>(j) * kCols];
    x[static_cast<int64_t>(i) * kCols] = sum / tile[i * ld + i];
  }
}

// The inverses of the blocks of kCols columns on the diagonal of L [n, n], as potrf leaves it: the lower triangle,
// row-major. A tile's is made by substitution, and that of [[A, 0], [B, C]] from those of A and C, -C^-1 B A^-1 below
// them, for all blocks at once; a library's solver walks the columns of one block after the other.
template <int64_t kCols, int64_t kTile>
class BlockInverses {
 public:
  BlockInverses(Exec& ex, const Tensor& l)
      : s_(ex.cuda_state()),
        l_(l.as<double>()),
        n_(l.cols()),
        full_(n_ / kCols),
        inverse_(ex.alloc_zeros(DType::f64, {(n_ + kCols - 1) / kCols, kCols, kCols})) {
    if (full_ > 0) {
      const Tensor room = ex.alloc(DType::f64, {full_, kCols / 2, kCols / 2});
      constexpr int64_t kTiles = kCols / kTile;
      invert_lower_kernel<kCols, kTile>
          <<<static_cast<unsigned>(full_ * kTiles), kTile, 0, s_.stream>>>(l_, n_, inverse_.as<double>());
      FEWBIT_CUDA_LAUNCHED();
      for (int64_t half = kTile; half < kCols; half *= 2)
        for (int64_t at = 0; at < kCols; at += 2 * half) join(at, half, room.as<double>());
    }
    if (full_ * kCols < n_) solve_last();
  }
  const double* data() const { return inverse_.as<double>(); }
  int64_t numel() const { return inverse_.numel(); }

 private:
  // Columns [at, at + 2 half) of every block, of whose two halves the inverses are there.
  void join(int64_t at, int64_t half, double* room) const {
    constexpr int64_t kSquare = kCols * kCols;
    const double one = 1, minus = -1, zero = 0;
    const int64_t l_step = kCols * (n_ + 1), below = (at + half) * kCols + at;
    double* inverse = inverse_.as<double>();
    // Row-major X = A B is X^T = B^T A^T column-major.
    FEWBIT_CUBLAS_CALL(cublasDgemmStridedBatched_64(
        s_.blas, CUBLAS_OP_N, CUBLAS_OP_N, half, half, half, &one, inverse + at * (kCols + 1), kCols, kSquare,
        l_ + (at + half) * n_ + at, n_, l_step, &zero, room, half, half * half, full_));
    FEWBIT_CUBLAS_CALL(cublasDgemmStridedBatched_64(s_.blas, CUBLAS_OP_N, CUBLAS_OP_N, half, half, half, &minus, room,
                                                    half, half * half, inverse + (at + half) * (kCols + 1), kCols,
                                                    kSquare, &zero, inverse + below, kCols, kSquare, full_));
  }

  // Of the columns behind the last whole block.
  void solve_last() const {
    const double one = 1;
    const int64_t j = full_ * kCols, width = n_ - j;
    double* to = inverse_.as<double>() + full_ * kCols * kCols;
    one_diagonal_kernel<<<1, 256, 0, s_.stream>>>(to, width, kCols);
    FEWBIT_CUDA_LAUNCHED();
    // Row-major L_jj is U = L_jj^T column-major, and U^-1 column-major is L_jj^-1 row-major.
    FEWBIT_CUBLAS_CALL(cublasDtrsm_64(s_.blas, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N,
                                      CUBLAS_DIAG_NON_UNIT, width, width, &one, l_ + j * n_ + j, n_, to, kCols));
  }

  CudaState& s_;
  const double* l_;
  int64_t n_, full_;
  Tensor inverse_;
};

}  // namespace fewbit::cuda
