#pragma once
// wide_product(): a product in f64 with a matrix that is widened strip by strip.
#include "kernels/cpu/blas_cpu.h"
#include "src/core/parallel.h"
#include "src/core/wide_cut.h"

namespace fewbit::cpu {

// x [rows, n] = a [rows, k] M [k, n], in groups of `grain` rows. fill(i, begin, end, to) writes columns [begin, end) of
// row i of M. The bits are those of one product with the whole of M: the sums over k are never cut.
//   a  row-major, its rows lda apart · strip  room for k * cut.widest() values
template <class Fill>
void wide_product(const double* a, int64_t lda, int64_t rows, int64_t grain, int64_t k, const WideCut& cut,
                  const Fill& fill, double* strip, double* x) {
  for (int64_t s = 0; s < cut.strips(); ++s) {
    const int64_t begin = cut.begin(s), end = cut.end(s), width = end - begin;
    parallel_for(k, 16, [&](int64_t i0, int64_t i1) {
      for (int64_t i = i0; i < i1; ++i) fill(i, begin, end, strip + i * width);
    });
    parallel_for(rows, grain, [&](int64_t r0, int64_t r1) {
      blas::gemm(CblasNoTrans, CblasNoTrans, r1 - r0, width, k, 1.0, a + r0 * lda, lda, strip, width, 0.0,
                 x + r0 * cut.n + begin, cut.n);
    });
  }
}

}  // namespace fewbit::cpu
