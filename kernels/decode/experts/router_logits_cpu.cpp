// The norm, then the product.
#include "kernels/decode/experts/router_logits.h"
#include "kernels/model/norm.h"

namespace fewbit::cpu {

void router_logits(Exec& ex, ConstTensorView x, const RowNorm& norm, ConstTensorView w, ConstTensorView bias,
                   TensorView normed, TensorView logits) {
  cpu::rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
  cpu::gemm(ex, normed, w, bias, logits);
}

}  // namespace fewbit::cpu
