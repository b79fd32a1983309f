#include "src/run/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/decode/experts/routed_experts.h"
#include "kernels/decode/experts/router_logits.h"
#include "kernels/model/cast.h"
#include "kernels/model/embed.h"
#include "kernels/model/gated_act.h"
#include "kernels/products/expert_gemms.h"
#include "kernels/products/expert_rows.h"
#include "kernels/products/gemm.h"
#include "src/run/rank_sums.h"

namespace fewbit {

ConstTensorView Routing::rows_of(int expert) const {
  return rows.view().row_range(begin[static_cast<size_t>(expert)], begin[static_cast<size_t>(expert) + 1]);
}

namespace {

RouteScore score_of(RouterScore score) {
  switch (score) {
    case RouterScore::sigmoid:
      return RouteScore::sigmoid;
    case RouterScore::root_softplus:
      return RouteScore::root_softplus;
    case RouterScore::softmax:
      break;
  }
  return RouteScore::softmax;
}

SwigluClamp clamp_of(const Moe& op) {
  return op.plain_swiglu ? SwigluClamp{op.swiglu_limit, 1.f, 0.f} : SwigluClamp{op.swiglu_limit};
}

ConstTensorView router_bias_of(const Moe& op, const BlockWeights& weights) {
  return op.router_bias ? weights.vectors.at(op.router + ".bias").view() : ConstTensorView{};
}
// The router's logits of x.
void logits_of(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, RankSums* ranks,
               TensorView logits) {
  if (op.router.empty()) return cast(ex, x, logits);
  gemm(ex, x, weights.vectors.at(op.router), router_bias_of(op, weights), logits);
  if (ranks) ranks->agree(ex, logits);
}
// How they choose the experts.
RouteRule rule_of(const Moe& op, const BlockWeights& weights) {
  if (op.router.empty()) return {.renormalise = false, .score = RouteScore::given};
  RouteRule rule{.renormalise = op.renormalise,
                 .score = score_of(op.score),
                 .scaling = op.scaling,
                 .groups = op.groups,
                 .best_groups = op.best_groups,
                 .judges = op.judges,
                 .logit_scale = op.logit_scale};
  if (!op.correction.empty()) rule.bias = weights.vectors.at(op.correction);
  if (!op.expert_scale.empty()) rule.expert_scale = weights.vectors.at(op.expert_scale);
  return rule;
}

// How a linear is multiplied for a few tokens; nothing where it is not.
std::optional<ExpertLinear> few_tokens_form(const Linear& linear) {
  if (const auto* m = std::get_if<MarlinLinear>(&linear)) return ExpertLinear{.w = view_of(*m), .bias = m->bias};
  if (const auto* b = std::get_if<ByteLinear>(&linear))
    return ExpertLinear{.w = ByteView{.w = {.codes = b->codes, .scales = b->scales}, .input = b->input},
                        .bias = b->bias};
  if (const auto* f = std::get_if<Fp4Linear>(&linear)) return ExpertLinear{.w = view_of(*f), .bias = f->bias};
  if (const auto* d = std::get_if<DenseLinear>(&linear); d && !d->input)
    return ExpertLinear{.w = ConstTensorView(d->weight), .bias = d->bias};
  return std::nullopt;
}

std::string prepare_mixture(Exec& ex, const Moe& op, BlockWeights& weights) {
  ExpertMixture m{.act = act_kind(op.act), .swiglu = clamp_of(op), .weigh_inputs = op.weigh_inputs};
  if (!op.all_own()) return "experts that several ranks share";
  const auto take = [&](const LinearDef& def, std::vector<ExpertLinear>& to) {
    for (int e = 0; e < op.experts; ++e)
      if (auto form = few_tokens_form(weights.linears.at(op.of_expert(def, e).name))) to.push_back(*form);
    return std::ssize(to) == op.experts;
  };
  if ((op.gated() && !take(op.gate, m.gate)) || !take(op.up, m.up) || !take(op.down, m.down))
    return "dense weights with rounded inputs";
  if (std::string why = refuses_experts(ex, m, op.top_k); !why.empty()) return why;
  prepare_experts(ex, m);
  weights.few_experts.insert_or_assign(op.expert_name,
                                       FewExperts{.mixture = std::move(m),
                                                  .logits = ex.alloc(DType::f32, {kFewTokens, op.experts}),
                                                  .ids = ex.alloc(DType::i32, {kFewTokens, op.top_k}),
                                                  .shares = ex.alloc(DType::f32, {kFewTokens, op.top_k})});
  return "";
}

}  // namespace

std::string prepare_few_experts(Exec& ex, const ModelSpec& spec, std::vector<BlockWeights>& blocks, DType dtype) {
  if (dtype != DType::bf16) return "float32 arithmetic";
  std::string first;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    BlockWeights& weights = blocks[static_cast<size_t>(layer)];
    weights.rooms.clear();
    for (const BlockOp& op : spec.block(layer)) {
      const auto make_room = [&](const std::string& name, DType type, int64_t cols) {
        weights.rooms[name].push_back(ex.alloc(type, {kFewTokens, cols}));
      };
      if (const TokenRoute* route = std::get_if<TokenRoute>(&op)) make_room(route->router, DType::f32, route->experts);
      if (const Project* p = std::get_if<Project>(&op); p && p->groups > 1) {
        make_room(p->name, dtype, p->in_features);
        make_room(p->name, dtype, p->out_features / p->groups);
      }
      if (const Moe* moe = std::get_if<Moe>(&op)) {
        const std::string why = prepare_mixture(ex, *moe, weights);
        if (first.empty() && !why.empty()) first = fmt::format("{}{}*: {}", spec.prefix(layer), moe->expert_name, why);
      }
    }
  }
  return first;
}

Routing route_tokens(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, RankSums* ranks) {
  const int64_t tokens = x.rows();
  const Tensor logits = ex.alloc(DType::f32, {tokens, op.experts});
  const Tensor ids = ex.alloc(DType::i32, {tokens, op.top_k});
  const Tensor shares = ex.alloc(DType::f32, {tokens, op.top_k});
  logits_of(ex, op, weights, x, ranks, logits);
  route(ex, logits, rule_of(op, weights), ids, shares);
  Routing r{.rows = ex.alloc(DType::i32, {tokens * op.top_k}),
            .weights = ex.alloc(DType::f32, {tokens * op.top_k}),
            .input_weights = {},
            .places = ex.alloc(DType::i32, ids.shape()),
            .begin = {}};
  const Tensor begin = ex.alloc(DType::i32, {op.experts + 1});
  expert_lists(ex, ids, shares, {.rows = r.rows, .weights = r.weights, .places = r.places, .begin = begin});
  const Tensor host = ex.to_host(begin);
  r.begin.assign(host.as<int32_t>(), host.as<int32_t>() + host.numel());
  if (op.weigh_inputs) {
    const Tensor ones = Tensor::host(DType::f32, r.weights.shape());
    std::fill_n(ones.as<float>(), ones.numel(), 1.f);
    r.input_weights = std::exchange(r.weights, ex.to_device(ones));
  }
  return r;
}

Tensor gather_rows(Exec& ex, ConstTensorView x, ConstTensorView rows) {
  Tensor y = ex.alloc(x.dtype, {rows.numel(), x.cols()});
  if (rows.numel() > 0) embed(ex, rows, x, 1.f, y);
  return y;
}

Tensor expert_rows(Exec& ex, const Routing& routing, int expert, ConstTensorView x) {
  Tensor rows = gather_rows(ex, x, routing.rows_of(expert));
  if (routing.input_weights.empty() || rows.rows() == 0) return rows;
  const size_t i = static_cast<size_t>(expert);
  const Tensor weighted = ex.alloc_zeros(DType::f32, rows.shape()), places = Tensor::host(DType::i32, {rows.rows()});
  std::iota(places.as<int32_t>(), places.as<int32_t>() + rows.rows(), 0);
  scatter_add_rows(ex, rows, ex.to_device(places),
                   routing.input_weights.view().row_range(routing.begin[i], routing.begin[i + 1]), weighted);
  cast(ex, weighted, rows);
  return rows;
}

namespace {

// Products of an expert with its rows of x: into u, and where it is gated into g.
void wide_products(Exec& ex, const Moe& op, int expert, const LinearByName& of, ConstTensorView x, TensorView u,
                   TensorView g) {
  apply(ex, of(op.of_expert(op.up, expert).name), x, u);
  if (op.gated()) apply(ex, of(op.of_expert(op.gate, expert).name), x, g);
}

// g = act(g) * u of any rows; without a gate act(u).
void activate(Exec& ex, const Moe& op, ConstTensorView u, TensorView g) {
  if (!op.gated())
    gated_act(ex, u, u, act_kind(op.act), g);
  else if (op.swiglu_limit > 0)
    clamped_swiglu(ex, g, u, clamp_of(op), g);
  else
    gated_act(ex, g, u, act_kind(op.act), g);
}

// What experts [first, last) read of x, side by side.
Tensor rows_of_experts(Exec& ex, const Routing& routing, int first, int last, ConstTensorView x) {
  if (last - first == 1) return expert_rows(ex, routing, first, x);
  const auto begin = routing.begin[static_cast<size_t>(first)], end = routing.begin[static_cast<size_t>(last)];
  return gather_rows(ex, x, routing.rows.view().row_range(begin, end));
}

// As many experts from `first` on as together have no more rows than there are tokens, for an expert alone may have so
// many; one where it weighs its inputs.
int experts_at_once(const Routing& routing, int first, int last, int64_t tokens) {
  int end = first + 1;
  while (end < last && routing.input_weights.empty() &&
         routing.begin[static_cast<size_t>(end) + 1] - routing.begin[static_cast<size_t>(first)] <= tokens)
    ++end;
  return end;
}

}  // namespace

Tensor expert_activation(Exec& ex, const Moe& op, int expert, const LinearByName& of, ConstTensorView x) {
  const Tensor u = ex.alloc(x.dtype, {x.rows(), op.up.out_features});
  Tensor g = ex.alloc(x.dtype, u.shape());
  wide_products(ex, op, expert, of, x, u, g);
  activate(ex, op, u, g);
  return g;
}

namespace {

// Rows of a chunk from which on a GPU multiplies small experts together. Fewer are a prompt's, whose experts have
// kernels for few rows.
constexpr int64_t kGroupedTokens = 512;

const Linear& linear_of(const BlockWeights& weights, const Moe& op, const LinearDef& def, int expert) {
  return weights.linears.at(op.of_expert(def, expert).name);
}

// Whether the products of these experts with x can be made together. Of one mixture the answer is the same whichever of
// its experts are there, so that the bits do not depend on that.
bool grouped(const Exec& ex, const Moe& op, const BlockWeights& weights, int expert, ConstTensorView x) {
  if (!ex.on_cuda() || x.rows() < kGroupedTokens || op.top_k > kMostPlaces) return false;
  const auto takes = [&](const LinearDef& def) {
    const auto* l = std::get_if<DenseLinear>(&linear_of(weights, op, def, expert));
    return l && !l->input && l->bias.empty() && takes_expert_gemms(x.dtype, def.out_features, def.in_features);
  };
  return takes(op.up) && takes(op.down) && (!op.gated() || takes(op.gate));
}

// What experts [first, last) make of their rows `read` [n, hidden], side by side, added to `sum`.
void add_grouped(Exec& ex, const Moe& op, const BlockWeights& weights, const Routing& routing, ConstTensorView read,
                 int first, int last, TensorView sum) {
  const int64_t begin = routing.begin[static_cast<size_t>(first)];
  const auto products = [&](const LinearDef& def, ConstTensorView x, TensorView y) {
    std::vector<ExpertProduct> all;
    for (int e = first; e < last; ++e)
      if (routing.tokens(e) > 0)
        all.push_back({.w = std::get<DenseLinear>(linear_of(weights, op, def, e)).weight,
                       .begin = routing.begin[static_cast<size_t>(e)] - begin,
                       .end = routing.begin[static_cast<size_t>(e) + 1] - begin});
    expert_gemms(ex, x, all, y);
  };
  const Tensor u = ex.alloc(read.dtype, {read.rows(), op.up.out_features}), g = ex.alloc(read.dtype, u.shape());
  products(op.up, read, u);
  if (op.gated()) products(op.gate, read, g);
  activate(ex, op, u, g);
  const Tensor y = ex.alloc(read.dtype, {read.rows(), op.hidden});
  products(op.down, g, y);
  combine_rows(ex, y, routing.places, routing.weights, begin, sum);
}

// The same, one expert after the other.
void add_each(Exec& ex, const Moe& op, const BlockWeights& weights, const Routing& routing, ConstTensorView read,
              int first, int last, TensorView sum) {
  const auto linear = [&](const std::string& name) -> const Linear& { return weights.linears.at(name); };
  const int64_t begin = routing.begin[static_cast<size_t>(first)];
  const auto each = [&](const auto& take) {
    for (int e = first; e < last; ++e)
      if (routing.tokens(e) > 0)
        take(e, routing.begin[static_cast<size_t>(e)] - begin, routing.begin[static_cast<size_t>(e) + 1] - begin);
  };
  const Tensor u = ex.alloc(read.dtype, {read.rows(), op.up.out_features}), g = ex.alloc(read.dtype, u.shape());
  each([&](int e, int64_t from, int64_t to) {
    wide_products(ex, op, e, linear, read.row_range(from, to), u.view().row_range(from, to),
                  g.view().row_range(from, to));
  });
  activate(ex, op, u, g);
  const Tensor y = ex.alloc(read.dtype, {read.rows(), op.hidden});
  each([&](int e, int64_t from, int64_t to) {
    apply(ex, linear(op.of_expert(op.down, e).name), g.view().row_range(from, to), y.view().row_range(from, to));
    scatter_add_rows(ex, y.view().row_range(from, to), routing.rows_of(e),
                     routing.weights.view().row_range(begin + from, begin + to), sum);
  });
}

}  // namespace

// What needs no weights is done for several experts at once: there are many, and each has few rows.
void add_experts(Exec& ex, const Moe& op, const BlockWeights& weights, const Routing& routing, ConstTensorView x,
                 int first, int last, TensorView sum) {
  for (int end = first; first < last; first = end) {
    end = experts_at_once(routing, first, last, x.rows());
    const Tensor read = rows_of_experts(ex, routing, first, end, x);
    if (read.rows() == 0) continue;
    (grouped(ex, op, weights, first, x) ? add_grouped : add_each)(ex, op, weights, routing, read, first, end, sum);
  }
}

namespace {

// The first `tokens` rows of the room of experts prepared for a few tokens; nothing where there are none or more
// tokens.
struct FewRoom {
  const ExpertMixture& mixture;
  TensorView logits, ids, shares;
};
std::optional<FewRoom> few_room(const Moe& op, const BlockWeights& weights, int64_t tokens) {
  const auto few = weights.few_experts.find(op.expert_name);
  if (few == weights.few_experts.end() || tokens > kFewTokens) return std::nullopt;
  const auto rows = [&](const Tensor& of) { return of.view().row_range(0, tokens); };
  return FewRoom{few->second.mixture, rows(few->second.logits), rows(few->second.ids), rows(few->second.shares)};
}
void run_few(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, const FewRoom& room,
             TensorView out, bool add) {
  routed_experts(ex, x, room.logits, rule_of(op, weights), room.ids, room.shares, room.mixture, out, add);
}
bool run_few(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, ConstTensorView routed,
             TensorView out, bool add, RankSums* ranks) {
  const std::optional<FewRoom> room = few_room(op, weights, x.rows());
  if (!room) return false;
  logits_of(ex, op, weights, routed, ranks, room->logits);
  run_few(ex, op, weights, x, *room, out, add);
  return true;
}

}  // namespace

bool run_moe_added(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, ConstTensorView routed,
                   TensorView sum, RankSums* ranks) {
  return run_few(ex, op, weights, x, routed, sum, true, ranks);
}

bool run_normed_moe_added(Exec& ex, const RowNorm& norm, const Moe& op, const BlockWeights& weights, ConstTensorView x,
                          TensorView normed, TensorView sum, RankSums* ranks) {
  const std::optional<FewRoom> room = few_room(op, weights, x.rows());
  if (!room || op.router.empty()) return false;
  router_logits(ex, x, norm, weights.vectors.at(op.router), router_bias_of(op, weights), normed, room->logits);
  if (ranks) ranks->agree(ex, room->logits);
  run_few(ex, op, weights, normed, *room, sum, true);
  return true;
}

void run_moe(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x, ConstTensorView routed,
             TensorView out, RankSums* ranks) {
  if (run_few(ex, op, weights, x, routed, out, false, ranks)) return;
  const Routing routing = route_tokens(ex, op, weights, routed, ranks);
  const Tensor sum = ex.alloc_zeros(DType::f32, {x.rows(), op.hidden});
  add_experts(ex, op, weights, routing, x, op.own_begin, op.last_own(), sum);
  if (!op.all_own()) ranks->add_up(ex, sum);
  cast(ex, sum, out);
}

bool has_moe(const ModelSpec& spec) {
  return std::any_of(spec.kinds.begin(), spec.kinds.end(), [](const std::vector<BlockOp>& block) {
    return std::any_of(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  });
}

}  // namespace fewbit
