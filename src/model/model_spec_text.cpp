// A ModelSpec in words.
#include <fmt/format.h>

#include "src/core/strings.h"
#include "src/model/model_spec.h"

namespace fewbit {

std::string describe(const ModelSpec& spec) {
  std::string s = fmt::format("{}: {} layers, hidden {}, vocabulary {}, positions {}, {} parameters{}{}\n", spec.arch,
                              spec.layers, spec.hidden, spec.vocab, spec.max_positions,
                              human_count(parameter_count(spec)), spec.tied() ? ", tied head" : "",
                              spec.logit_softcap > 0  ? fmt::format(", logits capped at {}", spec.logit_softcap)
                              : spec.logit_scale != 1 ? fmt::format(", logits times {}", spec.logit_scale)
                                                      : "");
  for (size_t kind = 0; kind < spec.kinds.size(); ++kind) {
    int64_t count = spec.kind_of_layer.empty() ? spec.layers : 0;
    for (int k : spec.kind_of_layer) count += k == static_cast<int>(kind);
    s += fmt::format("block kind {} ({} layers):\n", kind, count);
    for (const BlockOp& op : spec.kinds[kind]) {
      if (const Rope* r = std::get_if<Rope>(&op); r && r->params.original_positions > 0)
        s += fmt::format(
            "  rotation: LongRoPE, a table for sequences of up to {} positions and one for longer ones, "
            "cos and sin times {:.5f}\n",
            r->params.original_positions, r->params.attention_scale);
      if (const Attention* a = std::get_if<Attention>(&op))
        s += fmt::format("  attention: {} heads, {} key/value heads of {} features{}{}\n", a->heads, a->kv_heads,
                         a->head_dim,
                         a->window > 0  ? fmt::format(", window {}", a->window)
                         : a->chunk > 0 ? fmt::format(", chunks of {}", a->chunk)
                                        : "",
                         a->softcap > 0 ? fmt::format(", scores capped at {}", a->softcap) : "");
      if (const LatentAttention* a = std::get_if<LatentAttention>(&op))
        s += fmt::format(
            "  latent attention: {} heads with keys of {} + {} features and values of {}, {} kept a token{}\n",
            a->heads, a->nope, a->rope, a->value, a->rank + a->rope, a->chosen ? ", over chosen keys" : "");
      if (const KeyChoice* k = std::get_if<KeyChoice>(&op))
        s += fmt::format("  choice of {} keys: {} heads of {} features\n", k->top_k, k->heads, k->head_dim);
      if (const SharedKeyAttention* a = std::get_if<SharedKeyAttention>(&op))
        s += fmt::format(
            "  attention over shared keys: {} heads of {} features, window {}{}\n", a->heads, a->head_dim, a->window,
            a->sees_far() ? fmt::format(", {}keys of blocks of {}", a->chosen ? "chosen " : "", a->every) : "");
      if (const ReadStreams* r = std::get_if<ReadStreams>(&op))
        s += fmt::format("  {} residual streams of {} features\n", r->streams, r->hidden);
      if (const StateScan* m = std::get_if<StateScan>(&op))
        s += fmt::format("  state scan: {} heads of {} features, states of {}, {} groups\n", m->heads, m->head_dim,
                         m->state, m->groups);
      if (const DeltaRule* d = std::get_if<DeltaRule>(&op))
        s += fmt::format("  gated delta rule: {} value heads of {} features, {} key heads of {}\n", d->v_heads,
                         d->v_dim, d->k_heads, d->k_dim);
      if (const Linears* group = std::get_if<Linears>(&op))
        for (const LinearDef& l : group->items)
          s += fmt::format("  {} [{}, {}]{}\n", l.name, l.out_features, l.in_features, l.bias ? " with bias" : "");
      if (const Moe* m = std::get_if<Moe>(&op))
        s +=
            fmt::format("  {} experts, {} of them for a token: {}N.{} [{}, {}], {} [{}, {}]\n", m->experts, m->top_k,
                        m->expert_name, m->gated() ? fmt::format("{{{}, {}}}", m->gate.name, m->up.name) : m->up.name,
                        m->up.out_features, m->up.in_features, m->down.name, m->down.out_features, m->down.in_features);
    }
  }
  return s;
}

}  // namespace fewbit
