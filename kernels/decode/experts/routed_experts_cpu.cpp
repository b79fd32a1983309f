// The routing, then the experts.
#include "kernels/decode/experts/routed_experts.h"

namespace fewbit::cpu {

void routed_experts(Exec& ex, ConstTensorView x, ConstTensorView logits, const RouteRule& rule, TensorView ids,
                    TensorView shares, const ExpertMixture& m, TensorView out, bool add) {
  fewbit::route(ex, logits, rule, ids, shares);
  fewbit::few_experts(ex, x, ids, shares, m, out, add);
}

}  // namespace fewbit::cpu
