#include "src/run/latent.h"

#include "kernels/attention/cache_rows.h"
#include "kernels/attention/key_choice.h"
#include "kernels/attention/latent_attention.h"
#include "kernels/model/copy_columns.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "kernels/products/gemm.h"
#include "kernels/shared_keys/shared_key_attention.h"
#include "src/run/rank_sums.h"

namespace fewbit {

void run_key_choice(Exec& ex, const KeyChoice& op, const TokenLayout& layout, const Activations& act) {
  FEWBIT_ASSERT(act.choice);
  const TensorView index = act[op.k];
  const TensorView keys = layout.latents ? layout.latents->index.view()
                                         : index.reshaped({layout.seqs, index.rows() / layout.seqs, index.cols()});
  if (layout.latents) cache_rows(ex, index, layout.positions, keys);
  if (keys.shape[1] / op.every <= op.top_k) return act.choice->reset();
  if (const Shape shape = {index.rows(), op.top_k}; !(act.choice->shape() == shape))
    *act.choice = ex.alloc(DType::i32, shape);
  choose_keys(ex, act[op.q], keys, act[op.weights], layout.positions, op.every, *act.choice);
  if (layout.ranks) layout.ranks->agree(ex, *act.choice);
}

void run_shared_key_attention(Exec& ex, const SharedKeyAttention& op, const BlockWeights& weights,
                              const TokenLayout& layout, const Activations& act) {
  // Keys of the tokens at hand, or those of the cache, which takes them first.
  const auto keys_of = [&](Slot slot, const Tensor LatentStorage::*kept) -> ConstTensorView {
    const TensorView rows = act[slot];
    if (!layout.latents) return rows.reshaped({layout.seqs, rows.rows() / layout.seqs, rows.cols()});
    cache_rows(ex, rows, layout.positions, layout.latents->*kept);
    return layout.latents->*kept;
  };
  SharedKeys k{.keys = keys_of(op.k, &LatentStorage::keys)};
  if (op.sees_far()) k.far = keys_of(op.far, &LatentStorage::far);
  if (op.chosen && act.choice && !act.choice->empty()) k.chosen = *act.choice;
  shared_key_attention(ex, act[op.q], k, weights.vectors.at(op.sinks), layout.positions,
                       {.heads = op.heads, .scale = op.scale, .window = op.window, .every = op.every}, act[op.out]);
}

// The latents of the tokens at hand to the cache, as it stores them.
void append_latents(Exec& ex, ConstTensorView latent, const std::string& name, const BlockWeights& weights,
                    const TokenLayout& layout) {
  const LatentStorage& to = *layout.latents;
  if (to.scales.empty()) return cache_rows(ex, latent, layout.positions, to.latent);
  const int64_t rows = latent.rows(), rank = latent.cols();
  const Room codes = room_of(ex, weights, name, 0, DType::f8_e4m3, {rows, rank}),
             scales = room_of(ex, weights, name, 1, DType::f32, {rows, latent_groups(rank)});
  quantize_rows(ex, latent, {.codes = DType::f8_e4m3, .group = kLatentGroup}, codes.rows, scales.rows);
  cache_rows(ex, codes.rows, layout.positions, to.latent);
  cache_rows(ex, scales.rows, layout.positions, to.scales);
}

void run_latent_attention(Exec& ex, const LatentAttention& op, const BlockWeights& weights, const TokenLayout& layout,
                          const Activations& act) {
  const LatentArgs args{
      .heads = op.heads, .nope = op.nope, .rope = op.rope, .value = op.value, .rank = op.rank, .scale = op.scale};
  LatentQueries q{.nope = act[op.q_nope], .rope = act[op.q_rope]};
  if (op.chosen && act.choice && !act.choice->empty()) q.chosen = *act.choice;
  if (layout.latents) {
    append_latents(ex, act[op.latent], op.kv_b, weights, layout);
    cache_rows(ex, act[op.k_rope], layout.positions, layout.latents->k_rope);
  }
  if (!absorbs_weights(layout))
    return latent_attention(ex, q, act[op.kv], act[op.k_rope], layout.seqs, args, act[op.out]);
  const ConstTensorView w = std::get<DenseLinear>(weights.linears.at(op.kv_b)).weight;
  latent_attention_cached(ex, q, w, layout.positions,
                          {.latent = layout.latents->latent,
                           .k_rope = layout.latents->k_rope,
                           .scales = layout.latents->scales.empty() ? TensorView{} : layout.latents->scales.view()},
                          args, act[op.out]);
}

void make_latent_rooms(Exec& ex, const std::vector<BlockOp>& block, BlockWeights& weights, int64_t rows) {
  const LatentAttention* a = latent_attention_of(block);
  if (!a) return;
  std::vector<Tensor>& rooms = weights.rooms[a->kv_b];
  rooms.clear();
  rooms.push_back(ex.alloc(DType::f8_e4m3, {rows, a->rank}));
  rooms.push_back(ex.alloc(DType::f32, {rows, latent_groups(a->rank)}));
}

void run_groups(Exec& ex, const Project& op, const BlockWeights& weights, ConstTensorView in, TensorView out) {
  const int64_t each = op.out_features / op.groups;
  const ConstTensorView w = weights.vectors.at(op.name);
  const Room x = room_of(ex, weights, op.name, 0, in.dtype, {in.rows(), op.in_features}),
             y = room_of(ex, weights, op.name, 1, out.dtype, {in.rows(), each});
  for (int64_t g = 0; g < op.groups; ++g) {
    copy_columns(ex, in, g * op.in_features, x.rows, 0, op.in_features);
    gemm(ex, x.rows, w.row_range(g * each, (g + 1) * each), {}, y.rows);
    copy_columns(ex, y.rows, 0, out, g * each, each);
  }
}

bool is_absorbed(const Linears& linears, std::span<const BlockOp> later) {
  if (linears.items.size() != 1) return false;
  for (const BlockOp& op : later)
    if (const auto* a = std::get_if<LatentAttention>(&op)) return a->kv_b == linears.items[0].name;
  return false;
}

}  // namespace fewbit
