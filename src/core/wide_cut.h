#pragma once
// WideCut: how a product a [m, k] M [k, n] in f64, with an M that is stored in f32, is cut so that M is never whole in
// f64. A panel of rows of a is taken at once; strips of M's columns are widened one after the other.
#include <algorithm>
#include <cstdint>

#include "src/core/parallel.h"
#include "src/core/tensor.h"

namespace fewbit {

// The sums over k stay whole, so a cut changes no order of summation. The shapes depend on m, k, n and, for the rows on
// the CPU, on the number of threads alone.
struct WideCut {
  int64_t n = 0;
  int64_t rows = 0;  // at once
  int64_t cols = 0;  // of a strip; the last one takes what is left over as well

  int64_t strips() const { return std::max<int64_t>(1, n / cols); }
  int64_t begin(int64_t strip) const { return strip * cols; }
  int64_t end(int64_t strip) const { return strip + 1 == strips() ? n : (strip + 1) * cols; }
  int64_t widest() const { return n - begin(strips() - 1); }
};

// Columns of a strip for k rows of M. On the CPU 512, and never so few that a strip has less than 2^20 values:
// OpenBLAS has other kernels, with other bits, for products of less than 10^6 multiplications. On CUDA strips of about
// 128 MiB: with a panel of as much, the tiles of a product fill the multiprocessors even where n is 14,336.
inline int64_t strip_columns(Device::Kind kind, int64_t k, int64_t n) {
  const int64_t values = kind == Device::cuda ? int64_t{1} << 24 : int64_t{1} << 20;
  const int64_t needed = (values + k - 1) / std::max<int64_t>(1, k);
  return std::clamp<int64_t>((needed + 63) / 64 * 64, std::min<int64_t>(n, 512), n);
}

// M [n, n], m rows of a. Rows at once are whole groups of 64, enough for every thread or, on CUDA, for panels of about
// 128 MiB; each row costs 16 n bytes, itself and its product.
inline WideCut square_cut(Device::Kind kind, int64_t m, int64_t n) {
  const int64_t rows = kind == Device::cuda ? std::clamp<int64_t>((int64_t{1} << 24) / n / 256 * 256, 256, 4096)
                                            : std::max<int64_t>(1024, 64 * thread_count());
  return {.n = n, .rows = std::min(m, rows), .cols = strip_columns(kind, n, n)};
}

// Bytes of a product of square_cut(): a panel, its product and a strip.
inline int64_t square_cut_bytes(Device::Kind kind, int64_t m, int64_t n) {
  const WideCut c = square_cut(kind, m, n);
  return 8 * n * (2 * c.rows + c.widest());
}

}  // namespace fewbit
