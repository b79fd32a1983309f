#include "kernels/decode/append_attention.h"

namespace fewbit::cpu {

void append_attention(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms& norms, const RopeTable& table, const KvCache& cache, const AttentionArgs& args,
                      TensorView out) {
  cpu::rope_append(ex, q, k, v, positions, norms, table, cache);
  cpu::attention_cached(ex, q, positions, cache, args, out);
}

void append_attention_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                            const HeadNorms& norms, const RopeTable& table, const KvCache& cache,
                            const AttentionArgs& args, TensorView out) {
  cpu::rope_append_paged(ex, q, k, v, rows, norms, table, cache);
  cpu::attention_paged(ex, q, rows, cache, args, out);
}

}  // namespace fewbit::cpu
