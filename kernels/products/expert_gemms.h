#pragma once
// expert_gemms: the products of many weights, each with rows of its own, in one launch. Those of a mixture's experts
// are so small that to launch them takes longer than to compute them.
#include <span>

#include "kernels/exec/exec.h"
namespace fewbit {
// y[r, :] = x[r, :] W^T for the rows r of each product; rows of other products are left as they are.
//   x  [rows, in]   f32 | bf16
//   w  [out, in]    the dtype of x, all of one shape
//   y  [rows, out]  the dtype of x
// Numerics: as gemm(). On a GPU, where takes_expert_gemms(), the bits of a row depend on its values and its weight
// alone: on no other row, and on no other product of the call.
struct ExpertProduct {
  ConstTensorView w{};
  int64_t begin = 0, end = 0;  // rows of x and of y
};
// Whether a GPU has a kernel of its own for them: bf16, in a multiple of 64, out one of 8, and a weight of at most
// kMostExpertWeight values. Above that a product of the library is worth its launch.
inline constexpr int64_t kMostExpertWeight = int64_t{4} << 20;
constexpr bool takes_expert_gemms(DType x, int64_t out, int64_t in) {
  return x == DType::bf16 && in % 64 == 0 && out % 8 == 0 && in > 0 && out * in <= kMostExpertWeight;
}
namespace cpu {
void expert_gemms(Exec&, ConstTensorView x, std::span<const ExpertProduct> products, TensorView y);
}
namespace cuda {
void expert_gemms(Exec&, ConstTensorView x, std::span<const ExpertProduct> products, TensorView y);
}
inline void expert_gemms(Exec& ex, ConstTensorView x, std::span<const ExpertProduct> products, TensorView y) {
  FEWBIT_ASSERT(x.dtype == y.dtype && x.rows() == y.rows());
  for (const ExpertProduct& p : products) {
    FEWBIT_ASSERT(p.w.dtype == x.dtype && p.w.cols() == x.cols() && p.w.rows() == y.cols());
    FEWBIT_ASSERT(p.begin >= 0 && p.begin <= p.end && p.end <= x.rows());
  }
  pick(ex, &cpu::expert_gemms, FEWBIT_CUDA_OP(expert_gemms))(ex, x, products, y);
}
}  // namespace fewbit
