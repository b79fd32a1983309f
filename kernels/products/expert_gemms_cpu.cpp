#include "kernels/products/expert_gemms.h"

#include "kernels/products/gemm.h"

namespace fewbit::cpu {

void expert_gemms(Exec& ex, ConstTensorView x, std::span<const ExpertProduct> products, TensorView y) {
  for (const ExpertProduct& p : products)
    if (p.end > p.begin) cpu::gemm(ex, x.row_range(p.begin, p.end), p.w, {}, y.row_range(p.begin, p.end));
}

}  // namespace fewbit::cpu
