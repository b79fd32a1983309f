#include "kernels/decode/append_attention.h"

namespace fewbit::cpu {

void append_attention(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms& norms, const RopeTable& table, const KvCache& cache, const AttentionArgs& args,
                      TensorView out) {
  cpu::rope_append(ex, q, k, v, positions, norms, table, cache);
  cpu::attention_cached(ex, q, positions, cache, args, out);
}

}  // namespace fewbit::cpu
