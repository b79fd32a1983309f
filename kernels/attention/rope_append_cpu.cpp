// The CPU half of rope_append(): the ops, one after another, with a copy of k in between.
#include "kernels/attention/rope_append.h"

#include <cstring>

#include "kernels/model/hadamard.h"
#include "kernels/model/norm.h"
#include "kernels/model/rope.h"

namespace fewbit::cpu {

void rope_append(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                 const HeadNorms& norms, const RopeTable& table, const KvCache& cache) {
  const int64_t head_dim = head_dim_of(cache);
  const Tensor turned = Tensor::host(k.dtype, k.shape);
  std::memcpy(turned.view().data, k.data, static_cast<size_t>(k.bytes()));
  const auto norm_heads = [&](TensorView heads, ConstTensorView weight) {
    const TensorView rows = heads.reshaped({heads.numel() / head_dim, head_dim});
    if (weight.data) cpu::rms_norm(ex, rows, weight, norms.eps, norms.offset, rows);
  };
  norm_heads(q, norms.q);
  norm_heads(turned, norms.k);
  cpu::rope(ex, q, positions, table.inv_freq, head_dim, table.attention_scale, RopePairs::halves);
  cpu::rope(ex, turned, positions, table.inv_freq, head_dim, table.attention_scale, RopePairs::halves);
  if (table.hadamard) cpu::hadamard(ex, q, turned, head_dim);
  if (!table.turn_values) return cpu::kv_append(ex, turned, v, positions, cache);
  const Tensor values = Tensor::host(v.dtype, v.shape);
  std::memcpy(values.view().data, v.data, static_cast<size_t>(v.bytes()));
  cpu::hadamard(ex, values, values.view().row_range(0, 0), head_dim);
  cpu::kv_append(ex, turned, values, positions, cache);
}

}  // namespace fewbit::cpu
