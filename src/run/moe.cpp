#include "src/run/moe.h"

#include <algorithm>
#include <numeric>

#include "kernels/model/cast.h"
#include "kernels/model/embed.h"
#include "kernels/model/gated_act.h"
#include "kernels/model/route.h"
#include "kernels/products/gemm.h"
#include "src/run/rank_sums.h"

namespace fewbit {

ConstTensorView Routing::rows_of(int expert) const {
  return rows.view().row_range(begin[static_cast<size_t>(expert)], begin[static_cast<size_t>(expert) + 1]);
}

Routing route_tokens(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, RankSums* ranks) {
  const int64_t tokens = x.rows();
  const Tensor logits = ex.alloc(DType::f32, {tokens, op.experts});
  const ConstTensorView bias = op.router_bias ? weights.vectors.at(op.router + ".bias").view() : ConstTensorView{};
  gemm(ex, x, weights.vectors.at(op.router), bias, logits);
  if (ranks) ranks->agree(ex, logits);
  const Tensor ids = ex.alloc(DType::i32, {tokens, op.top_k});
  const Tensor shares = ex.alloc(DType::f32, {tokens, op.top_k});
  RouteRule rule{.renormalise = op.renormalise,
                 .score = op.score == RouterScore::sigmoid ? RouteScore::sigmoid : RouteScore::softmax,
                 .scaling = op.scaling,
                 .groups = op.groups,
                 .best_groups = op.best_groups,
                 .judges = op.judges,
                 .logit_scale = op.logit_scale};
  if (!op.correction.empty()) rule.bias = weights.vectors.at(op.correction);
  if (!op.expert_scale.empty()) rule.expert_scale = weights.vectors.at(op.expert_scale);
  route(ex, logits, rule, ids, shares);
  const Tensor host_ids = ex.to_host(ids), host_shares = ex.to_host(shares);
  Routing r;
  r.begin.assign(static_cast<size_t>(op.experts) + 1, 0);
  for (int64_t i = 0; i < host_ids.numel(); ++i) ++r.begin[static_cast<size_t>(host_ids.as<int32_t>()[i]) + 1];
  std::partial_sum(r.begin.begin(), r.begin.end(), r.begin.begin());
  std::vector<int64_t> next(r.begin.begin(), r.begin.end() - 1);
  const Tensor rows = Tensor::host(DType::i32, {host_ids.numel()});
  const Tensor sorted = Tensor::host(DType::f32, {host_ids.numel()});
  for (int64_t i = 0; i < host_ids.numel(); ++i) {
    const int64_t at = next[static_cast<size_t>(host_ids.as<int32_t>()[i])]++;
    rows.view().as<int32_t>()[at] = static_cast<int32_t>(i / op.top_k);
    sorted.view().as<float>()[at] = host_shares.as<float>()[i];
  }
  r.rows = ex.to_device(rows);
  r.weights = ex.to_device(sorted);
  return r;
}

Tensor gather_rows(Exec& ex, ConstTensorView x, ConstTensorView rows) {
  Tensor y = ex.alloc(x.dtype, {rows.numel(), x.cols()});
  if (rows.numel() > 0) embed(ex, rows, x, 1.f, y);
  return y;
}

Tensor expert_activation(Exec& ex, const Moe& op, const Linear& gate, const Linear& up, ConstTensorView x) {
  Tensor g = ex.alloc(x.dtype, {x.rows(), op.gate.out_features});
  const Tensor u = ex.alloc(x.dtype, {x.rows(), op.up.out_features});
  apply(ex, gate, x, g);
  apply(ex, up, x, u);
  if (op.swiglu_limit > 0)
    clamped_swiglu(ex, g, u, op.swiglu_limit, g);
  else
    gated_act(ex, g, u, act_kind(op.act), g);
  return g;
}

void run_moe(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, ConstTensorView routed,
             TensorView out, RankSums* ranks) {
  const Routing routing = route_tokens(ex, op, weights, routed, ranks);
  const Tensor sum = ex.alloc_zeros(DType::f32, {x.rows(), op.hidden});
  for (int e = op.own_begin; e < op.last_own(); ++e) {
    if (routing.tokens(e) == 0) continue;
    const auto linear = [&](const LinearDef& def) -> const Linear& {
      return weights.linears.at(op.of_expert(def, e).name);
    };
    const ConstTensorView rows = routing.rows_of(e);
    const Tensor act = expert_activation(ex, op, linear(op.gate), linear(op.up), gather_rows(ex, x, rows));
    const Tensor y = ex.alloc(x.dtype, {rows.numel(), op.hidden});
    apply(ex, linear(op.down), act, y);
    const size_t i = static_cast<size_t>(e);
    scatter_add_rows(ex, y, rows, routing.weights.view().row_range(routing.begin[i], routing.begin[i + 1]), sum);
  }
  if (!op.all_own()) ranks->add_up(ex, sum);
  cast(ex, sum, out);
}

bool has_moe(const ModelSpec& spec) {
  return std::any_of(spec.kinds.begin(), spec.kinds.end(), [](const std::vector<BlockOp>& block) {
    return std::any_of(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  });
}

}  // namespace fewbit
