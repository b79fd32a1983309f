// The CPU half of rope_append(): the ops, one after another, with a copy of k in between.
#include "kernels/attention/rope_append.h"

#include <cstring>

#include "kernels/model/hadamard.h"
#include "kernels/model/norm.h"
#include "kernels/model/rope.h"

namespace fewbit::cpu {
namespace {

// `append` takes the turned keys, and the values, turned where that is asked.
template <class F>
void turn(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
          const HeadNorms& norms, const RopeTable& table, int64_t head_dim, F&& append) {
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
  if (!table.turn_values) return append(turned, v);
  const Tensor values = Tensor::host(v.dtype, v.shape);
  std::memcpy(values.view().data, v.data, static_cast<size_t>(v.bytes()));
  cpu::hadamard(ex, values, values.view().row_range(0, 0), head_dim);
  append(turned, values);
}

}  // namespace

void rope_append(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                 const HeadNorms& norms, const RopeTable& table, const KvCache& cache) {
  turn(ex, q, k, v, positions, norms, table, head_dim_of(cache),
       [&](ConstTensorView keys, ConstTensorView values) { cpu::kv_append(ex, keys, values, positions, cache); });
}

void rope_append_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                       const HeadNorms& norms, const RopeTable& table, const KvCache& cache) {
  turn(ex, q, k, v, rows.positions, norms, table, head_dim_of(cache),
       [&](ConstTensorView keys, ConstTensorView values) { cpu::kv_append_paged(ex, keys, values, rows, cache); });
}

}  // namespace fewbit::cpu
