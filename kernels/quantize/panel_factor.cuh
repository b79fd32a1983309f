#pragma once
// PanelFactor: the Cholesky factor of a wide f64 system on a GPU, by panels of columns, alone or shared by processes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/block_inverses.cuh"
#include "kernels/device/row_product.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/quantize/column_tiles.h"
#include "kernels/quantize/factor.h"

namespace fewbit::cuda {

using SolveInverses = BlockInverses<kSolveCols, kTileCols>;

// In-place Cholesky of the lower triangle of [n, n], row-major, rows ld apart; its info lands on the device.
static void potrf(Exec& ex, cudaDataType_t type, void* a, int64_t n, int64_t ld, int* info) {
  CudaState& s = ex.cuda_state();
  size_t on_device = 0, on_host = 0;
  FEWBIT_CUSOLVER_CALL(cusolverDnXpotrf_bufferSize(s.solver(), nullptr, CUBLAS_FILL_MODE_UPPER, n, type, a, ld, type,
                                                   &on_device, &on_host));
  const Tensor room = ex.alloc(DType::u8, {static_cast<int64_t>(on_device) + 1});
  std::vector<char> host_room(on_host + 1);
  FEWBIT_CUSOLVER_CALL(cusolverDnXpotrf(s.solver(), nullptr, CUBLAS_FILL_MODE_UPPER, n, type, a, ld, type,
                                        room.view().data, on_device, host_room.data(), on_host, info));
}

// A panel's columns get what the panels before it take from them, then its square on the diagonal is factored by the
// library, and the rows below are solved by products with inverses of that square's blocks. The rows of both are
// divided among the processes, which then show each other theirs: row_product() gives a row the same bits for any
// number of rows. The squares themselves every process factors alike; a library's factor of the whole spends a third
// of its time on such squares, of 512 columns, and on small triangular solutions (14,336 columns on an H200: 46 ms).
class PanelFactor {
 public:
  // Narrower systems the library factors as a whole. A panel of 4,096 columns: of fewer, the squares' factors and the
  // messages would be more than the products.
  static constexpr int64_t kNarrow = 8192, kPanel = 4 * kSolveCols;
  static int64_t panels(int64_t n) { return (n + kPanel - 1) / kPanel; }

  // a [n, n] f64, symmetric; its lower triangle becomes L, and `inverses` those of L's blocks.
  PanelFactor(Exec& ex, const Tensor& a, SolveInverses& inverses, const PanelShare& share)
      : ex_(ex), s_(ex.cuda_state()), a_(a.as<double>()), n_(a.cols()), inverses_(inverses), share_(share) {}

  // info [panels(n)] i32 on the device: what the library says of each panel's square.
  void run(int* info) {
    for (int64_t k = 0; k < n_; k += kPanel) {
      const int64_t end = std::min(n_, k + kPanel);
      const Bands square = bands(k, end, Work::triangle), below = bands(end, n_, Work::rectangle);
      if (k > 0) {
        // Of the square's rows only what is left of the diagonal, in whole blocks of columns.
        const Rows own = mine(square);
        for (int64_t row = own.begin, to = 0; row < own.begin + own.count; row = to) {
          const int64_t cols = k + ((row - k) / kSolveCols + 1) * kSolveCols;
          to = std::min(own.begin + own.count, cols);
          update({row, to - row}, k, std::min(end, cols));
        }
        update(mine(below), k, end);
        exchange(square, k, end);
      }
      potrf(ex_, CUDA_R_64F, at(k, k), end - k, n_, info + k / kPanel);
      inverses_.add(k, end);
      if (end == n_) return;
      solve(mine(below), k, end);
      exchange(below, k, end);
    }
  }

 private:
  using Bands = std::vector<int64_t>;  // begins of the processes' rows, and their end
  struct Rows {
    int64_t begin = 0, count = 0;
  };
  // Rows of a band begin where those of any other do within 256 bytes, at which row_product() looks.
  static constexpr int64_t kUnit = 128;

  // The processes' rows, which have equally much of the work: rows of a triangle grow longer.
  enum class Work : uint8_t { triangle, rectangle };
  Bands bands(int64_t begin, int64_t end, Work work) const {
    Bands b;
    const auto units = static_cast<double>((end - begin + kUnit - 1) / kUnit);
    for (int64_t r = 0; r <= share_.size; ++r) {
      const double part = static_cast<double>(r) / share_.size;
      const double at = std::round(units * (work == Work::triangle ? std::sqrt(part) : part));
      b.push_back(std::min(end, begin + static_cast<int64_t>(at) * kUnit));
    }
    return b;
  }
  Rows mine(const Bands& b) const {
    const auto r = static_cast<size_t>(share_.rank);
    return {b[r], b[r + 1] - b[r]};
  }
  double* at(int64_t row, int64_t col) const { return a_ + row * n_ + col; }

  void product(int64_t rows, int64_t inner, int64_t cols, RowFactors factors, int64_t a_ld, int64_t b_ld, double* c,
               double alpha, double beta) const {
    row_product(s_,
                {.type = CUDA_R_64F,
                 .rows = rows,
                 .inner = inner,
                 .cols = cols,
                 .a_ld = a_ld,
                 .b_ld = b_ld,
                 .c = c,
                 .c_ld = n_,
                 .alpha = alpha,
                 .beta = beta,
                 .transposed = true},
                {&factors, 1});
  }
  void copy(const double* from, int64_t from_ld, double* to, int64_t to_ld, int64_t rows, int64_t cols) const {
    constexpr size_t kWide = sizeof(double);
    FEWBIT_CUDA_CALL(cudaMemcpy2DAsync(to, static_cast<size_t>(to_ld) * kWide, from,
                                       static_cast<size_t>(from_ld) * kWide, static_cast<size_t>(cols) * kWide,
                                       static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, s_.stream));
  }

  // a [rows, k:end] -= L [rows, :k] L [k:end, :k]^T, where L's rows from k on are those of the square
  void update(Rows rows, int64_t k, int64_t end) const {
    if (rows.count == 0) return;
    product(rows.count, k, end - k, {at(rows.begin, 0), at(k, 0)}, n_, n_, at(rows.begin, k), -1, 1);
  }

  // X L^T = a [rows, k:end] for the square's L, in its place, block by block of columns.
  void solve(Rows rows, int64_t k, int64_t end) const {
    if (rows.count == 0) return;
    const Tensor right = ex_.alloc(DType::f64, {rows.count, kSolveCols});
    for (int64_t j = k; j < end; j += kSolveCols) {
      const int64_t width = std::min(kSolveCols, end - j);
      double* x = at(rows.begin, j);
      if (j > k) product(rows.count, j - k, width, {at(rows.begin, k), at(j, k)}, n_, n_, x, -1, 1);
      copy(x, n_, right.as<double>(), kSolveCols, rows.count, width);
      product(rows.count, width, width, {right.as<double>(), inverses_.at(j / kSolveCols)}, kSolveCols, kSolveCols, x,
              1, 0);
    }
  }

  // Columns [k, end) of the bands' rows: from those who have them to all.
  void exchange(const Bands& bands, int64_t k, int64_t end) const {
    if (share_.alone()) return;
    const int64_t first = bands.front(), rows = bands.back() - first, width = end - k;
    const Tensor all = ex_.alloc(DType::f64, {rows, width});
    Bands begin;
    for (const int64_t b : bands) begin.push_back(b - first);
    const auto with = [&](int64_t from, int64_t to, bool out) {
      double *here = at(from, k), *there = all.as<double>() + (from - first) * width;
      if (from == to) return;
      out ? copy(here, n_, there, width, to - from, width) : copy(there, width, here, n_, to - from, width);
    };
    const Rows own = mine(bands);
    with(own.begin, own.begin + own.count, true);
    share_.gather_rows(ex_, all, begin);
    with(first, own.begin, false);
    with(own.begin + own.count, bands.back(), false);
  }

  Exec& ex_;
  CudaState& s_;
  double* a_;
  int64_t n_;
  SolveInverses& inverses_;
  const PanelShare& share_;
};

}  // namespace fewbit::cuda
