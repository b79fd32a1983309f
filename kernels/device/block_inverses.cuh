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
  // Room for those of L; add() makes them.
  BlockInverses(Exec& ex, const Tensor& l)
      : ex_(ex),
        s_(ex.cuda_state()),
        l_(l.as<double>()),
        n_(l.cols()),
        inverse_(ex.alloc_zeros(DType::f64, {(n_ + kCols - 1) / kCols, kCols, kCols})) {}

  // Those of the columns [begin, end), where the factor is there: whole blocks, or up to L's end.
  void add(int64_t begin, int64_t end) {
    const int64_t first = begin / kCols, full = end / kCols - first;
    if (full > 0) {
      const Tensor room = ex_.alloc(DType::f64, {full, kCols / 2, kCols / 2});
      constexpr int64_t kTiles = kCols / kTile;
      invert_lower_kernel<kCols, kTile>
          <<<static_cast<unsigned>(full * kTiles), kTile, 0, s_.stream>>>(l_ + begin * (n_ + 1), n_, at(first));
      FEWBIT_CUDA_LAUNCHED();
      for (int64_t half = kTile; half < kCols; half *= 2)
        for (int64_t col = 0; col < kCols; col += 2 * half) join(first, full, col, half, room.as<double>());
    }
    if ((first + full) * kCols < end) solve_last();
  }
  // [kCols, kCols] of the block.
  double* at(int64_t block) const { return inverse_.as<double>() + block * kCols * kCols; }
  const double* data() const { return inverse_.as<double>(); }
  int64_t numel() const { return inverse_.numel(); }

 private:
  // Columns [col, col + 2 half) of `full` blocks, of whose two halves the inverses are there.
  void join(int64_t first, int64_t full, int64_t col, int64_t half, double* room) const {
    constexpr int64_t kSquare = kCols * kCols;
    const double one = 1, minus = -1, zero = 0;
    const int64_t l_step = kCols * (n_ + 1), below = (col + half) * kCols + col;
    const double* l = l_ + first * l_step;
    double* inverse = at(first);
    // Row-major X = A B is X^T = B^T A^T column-major.
    FEWBIT_CUBLAS_CALL(cublasDgemmStridedBatched_64(
        s_.blas, CUBLAS_OP_N, CUBLAS_OP_N, half, half, half, &one, inverse + col * (kCols + 1), kCols, kSquare,
        l + (col + half) * n_ + col, n_, l_step, &zero, room, half, half * half, full));
    FEWBIT_CUBLAS_CALL(cublasDgemmStridedBatched_64(s_.blas, CUBLAS_OP_N, CUBLAS_OP_N, half, half, half, &minus, room,
                                                    half, half * half, inverse + (col + half) * (kCols + 1), kCols,
                                                    kSquare, &zero, inverse + below, kCols, kSquare, full));
  }

  // Of the columns behind the last whole block.
  void solve_last() const {
    const double one = 1;
    const int64_t full = n_ / kCols, j = full * kCols, width = n_ - j;
    double* to = at(full);
    one_diagonal_kernel<<<1, 256, 0, s_.stream>>>(to, width, kCols);
    FEWBIT_CUDA_LAUNCHED();
    // Row-major L_jj is U = L_jj^T column-major, and U^-1 column-major is L_jj^-1 row-major.
    FEWBIT_CUBLAS_CALL(cublasDtrsm_64(s_.blas, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N,
                                      CUBLAS_DIAG_NON_UNIT, width, width, &one, l_ + j * n_ + j, n_, to, kCols));
  }

  Exec& ex_;
  CudaState& s_;
  const double* l_;
  int64_t n_;
  Tensor inverse_;
};

}  // namespace fewbit::cuda
