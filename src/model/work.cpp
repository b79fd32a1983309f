#include "src/model/work.h"

#include <algorithm>

namespace fewbit {
namespace {

double weights_of(const LinearDef& l) {
  return static_cast<double>(l.out_features) * static_cast<double>(l.in_features);
}

// Positions that the first `tokens` of a sequence see, all together; window 0 = all earlier ones.
double seen_by(int64_t tokens, int64_t window) {
  const int64_t growing = window > 0 ? std::min(tokens, window) : tokens;
  return static_cast<double>(growing) * static_cast<double>(growing + 1) / 2 +
         static_cast<double>(tokens - growing) * static_cast<double>(window);
}

// The same in chunks that do not see each other.
double seen_in_chunks(int64_t tokens, int64_t chunk) {
  const int64_t whole = tokens / chunk;
  return static_cast<double>(whole) * seen_by(chunk, 0) + seen_by(tokens % chunk, 0);
}

double flop_of(const BlockOp& op, int64_t past, int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  if (const auto* a = std::get_if<Attention>(&op)) {
    const auto seen = [a](int64_t n) { return a->chunk > 0 ? seen_in_chunks(n, a->chunk) : seen_by(n, a->window); };
    return 4. * a->heads * static_cast<double>(a->head_dim) * (seen(past + tokens) - seen(past));
  }
  if (const auto* a = std::get_if<LatentAttention>(&op))  // as it is over the tokens at hand, all keys in sight
    return 2. * a->heads * static_cast<double>(a->nope + a->rope + a->value) *
           (seen_by(past + tokens, 0) - seen_by(past, 0));
  if (const auto* k = std::get_if<KeyChoice>(&op))
    return 2. * k->heads * static_cast<double>(k->head_dim) * (seen_by(past + tokens, 0) - seen_by(past, 0)) /
           static_cast<double>(k->every);
  if (const auto* a = std::get_if<SharedKeyAttention>(&op)) {  // the far keys all in sight
    double seen = seen_by(past + tokens, a->window) - seen_by(past, a->window);
    if (a->sees_far()) seen += (seen_by(past + tokens, 0) - seen_by(past, 0)) / static_cast<double>(a->every);
    return 4. * a->heads * static_cast<double>(a->head_dim) * seen;
  }
  if (const auto* r = std::get_if<ReadStreams>(&op))
    return 2 * n * static_cast<double>((2 + r->streams) * r->streams * r->streams * r->hidden);
  if (const auto* r = std::get_if<TokenRoute>(&op)) return 2 * n * static_cast<double>(r->experts * r->hidden);
  if (const auto* m = std::get_if<Moe>(&op)) {  // of one rank's experts the share that they would have of all work
    const double own = static_cast<double>(m->last_own() - m->own_begin) / m->experts;
    return 2 * n *
           ((m->router.empty() ? 0. : static_cast<double>(m->experts * m->hidden)) +
            own * m->top_k * ((m->gated() ? 2 : 1) * weights_of(m->up) + weights_of(m->down)));
  }
  if (const auto* p = std::get_if<Project>(&op)) return 2 * n * static_cast<double>(p->out_features * p->in_features);
  if (const auto* c = std::get_if<ShortConv>(&op)) return 2 * n * static_cast<double>(c->channels * c->taps);
  if (const auto* d = std::get_if<DeltaRule>(&op))  // decay, two products with the state, and what is added to it
    return 7 * n * static_cast<double>(d->v_heads * d->k_dim * d->v_dim);
  if (const auto* s = std::get_if<StateScan>(&op))  // decay, what is added to the state, the product with it
    return 6 * n * static_cast<double>(s->heads * s->head_dim * s->state);
  double weights = 0;
  for (const LinearDef& l : linears_of(op)) weights += weights_of(l);
  return 2 * n * weights;
}

}  // namespace

double pass_flop(const ModelSpec& spec, int64_t seqs, int64_t past, int64_t tokens) {
  double flop = 2. * static_cast<double>(spec.vocab * spec.hidden);
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer)) flop += flop_of(op, past, tokens);
  return flop * static_cast<double>(seqs);
}

}  // namespace fewbit
