#include "kernels/products/gemm.h"
#include "kernels/products/gemm_in_terms.h"

namespace fewbit::cpu {

void gemm_in_terms(Exec& ex, ConstTensorView x, ConstTensorView w, TensorView y) { cpu::gemm(ex, x, w, {}, y); }

}  // namespace fewbit::cpu
