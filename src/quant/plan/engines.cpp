#include "src/quant/plan/engines.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/model/family.h"
#include "src/model/op_slots.h"

namespace fewbit {
namespace {

// How tensor parallelism cuts a linear: its outputs, or its inputs.
enum class Cut : uint8_t { outputs, inputs };

struct Shard {
  const PlannedLinear* linear = nullptr;
  int64_t copies_from = 0;  // > 0: at most so many different parts exist (key/value heads); others are copies
};

// Linears that an engine runs as one, in the order of the model; of a mixture the experts of one kind.
struct Fused {
  Cut cut = Cut::outputs;
  std::vector<Shard> shards{};
  bool experts = false;
};

// Whether a linear reads what heads, channels or groups of its own GPU made; else what every GPU has whole, behind a
// norm or in the residual stream.
bool reads_parts(const std::vector<BlockOp>& block, const Linears& l) {
  bool normed = false;
  for (const BlockOp& op : block) {
    if (std::get_if<Linears>(&op) == &l) break;
    const std::vector<Slot> written = slots_written(op);
    if (std::find(written.begin(), written.end(), l.in) != written.end()) normed = std::holds_alternative<Norm>(op);
  }
  return l.in != Slot::x && !normed;
}

class Check {
 public:
  Check(const ModelSpec& spec, const QuantPlan& plan, const EngineRules& engine, int64_t tp)
      : spec_(spec), plan_(plan), engine_(engine), tp_(tp) {
    for (const FormatRule& r : format_rules())
      if (r.engine == engine.name && r.format == plan.format->name) rows_.push_back(&r);
    for (const PlannedLinear& p : plan.linears) by_name_[p.linear.name] = &p;
  }

  EngineVerdict run() {
    if (rows_.empty()) {
      v_.refusals.push_back({fmt::format("format {}", plan_.format->name), no_such_format()});
      return std::move(v_);
    }
    check_family();
    if (plan_.fp8_kv_cache && !engine_.kv_scales.empty())
      add_note(v_.note, fmt::format("{} {}", who(), engine_.kv_scales));
    check_ends();
    check_recurrent_heads();
    const bool heads_fit = check_heads();
    for (int64_t layer = 0; layer < spec_.layers; ++layer)
      for (const BlockOp& op : spec_.block(layer)) check_op(layer, op, heads_fit);
    return std::move(v_);
  }

 private:
  std::string who() const { return fmt::format("{} {}", engine_.name, engine_.version); }
  void refuse(const std::string& name, const std::string& reason) { v_.refusals.push_back({name, reason}); }

  std::string no_such_format() const {
    std::vector<std::string_view> known;
    for (const FormatRule& r : format_rules())
      if (r.engine == engine_.name && std::find(known.begin(), known.end(), r.format) == known.end())
        known.push_back(r.format);
    if (plan_.format->two_of_four)
      return fmt::format(
          "{} does not load it: engines have dropped 2:4 sparsity; --format compressed-tensors or gptq "
          "hold the same codes, zeros and all",
          who());
    return fmt::format("{} does not load it; it loads --format {}", who(), fmt::join(known, ", "));
  }

  // What the record of the family says of the engine.
  void check_family() {
    const Family* family = find_family(spec_.arch);
    if (!family) return;
    for (const EngineNote& n : family->engines) {
      if (n.engine != engine_.name) continue;
      const std::string said = fmt::format("{} {}", who(), n.note);
      if (n.refuses)
        refuse(spec_.arch, said);
      else
        add_note(v_.note, said);
    }
  }

  // Embedding and head, where they are packed.
  void check_ends() {
    for (const PlannedLinear& p : plan_.linears) {
      const bool embedding = p.linear.name + ".weight" == spec_.embed;
      if ((!embedding && p.linear.name + ".weight" != spec_.lm_head) || p.keep || p.layout().empty()) continue;
      const FormatRule* r = row_of(p);
      if (!r) continue;
      const bool integers = p.recipe.spec.grid == Grid::integer && p.recipe.spec.symmetric;
      if (const std::string why = scheme_refusal(*r, p); !why.empty())
        refuse(p.linear.name, fmt::format("{} {} ({})", who(), why, r->source));
      else if (embedding && (r->embedding == FormatRule::Embedding::no ||
                             (r->embedding == FormatRule::Embedding::integers && !integers)))
        refuse(p.linear.name, fmt::format("{} does not load a packed embedding of {} in format {} ({})", who(),
                                          p.recipe.spec.str(), plan_.format->name,
                                          r->embedding == FormatRule::Embedding::no ? engine_.embedding : r->source));
      else if (embedding && r->embedding == FormatRule::Embedding::integers)
        v_.notes[p.linear.name] = fmt::format(
            "{} loads a packed embedding only in families whose code passes the quantization on to it", who());
    }
  }

  void check_recurrent_heads() {
    if (tp_ == 1 || engine_.recurrent_source.empty()) return;
    for (const auto& ops : spec_.kinds)
      for (const BlockOp& op : ops) {
        std::string what;
        if (const auto* d = std::get_if<DeltaRule>(&op); d && (d->k_heads % tp_ != 0 || d->v_heads % tp_ != 0))
          what = fmt::format("{} key and {} value heads of its delta nets", d->k_heads, d->v_heads);
        if (const auto* s = std::get_if<StateScan>(&op);
            s && (s->heads % tp_ != 0 || (s->groups % tp_ != 0 && s->groups != 1)))
          what = fmt::format("{} heads in {} groups of its state spaces", s->heads, s->groups);
        if (what.empty()) continue;
        refuse(spec_.arch, fmt::format("{} gives each of {} GPUs whole heads: {} do not divide among them ({})", who(),
                                       tp_, what, engine_.recurrent_source));
        return;
      }
  }

  // True where every GPU gets whole heads.
  bool check_heads() {
    if (tp_ == 1 || !engine_.splits_heads) return true;
    for (const auto& ops : spec_.kinds)
      if (const Attention* a = attention_of(ops)) {
        const bool kv = a->kv_heads >= tp_ ? a->kv_heads % tp_ == 0 : tp_ % a->kv_heads == 0;
        if (a->heads % tp_ == 0 && kv) continue;
        refuse(spec_.arch,
               fmt::format("{} gives each of {} GPUs whole heads: {} attention and {} key/value heads do not "
                           "divide among them ({})",
                           who(), tp_, a->heads, a->kv_heads, engine_.source));
        return false;
      }
    for (const auto& ops : spec_.kinds)
      if (const LatentAttention* a = latent_attention_of(ops); a && a->heads % tp_ != 0) {
        refuse(spec_.arch, fmt::format("{} gives each of {} GPUs whole heads: {} do not divide among them ({})", who(),
                                       tp_, a->heads, engine_.source));
        return false;
      }
    return true;
  }

  Fused fused_of(int64_t layer, const std::vector<LinearDef>& items, Cut cut, const Attention* attention) const {
    Fused f{.cut = cut};
    for (const LinearDef& d : items) {
      const bool kv = attention && (d.out == attention->k || d.out == attention->v);
      const int64_t copies_from = kv ? attention->kv_heads : on_every_gpu(layer, d) ? 1 : 0;
      f.shards.push_back({by_name_.at(spec_.prefix(layer) + d.name), copies_from});
    }
    return f;
  }
  // What makes the latents of queries, and of keys and values, has no heads to divide.
  bool on_every_gpu(int64_t layer, const LinearDef& d) const {
    const std::vector<BlockOp>& block = spec_.block(layer);
    const LatentAttention* a = latent_attention_of(block);
    return a && (d.out == Slot::q_latent || d.out == fused_source(block, a->latent));
  }

  void check_op(int64_t layer, const BlockOp& op, bool heads_fit) {
    if (const auto* l = std::get_if<Linears>(&op)) {
      const bool inner = reads_parts(spec_.block(layer), *l);
      const Attention* a = attention_of(spec_.block(layer));
      const LatentAttention* latent = latent_attention_of(spec_.block(layer));
      const bool of_heads = (a && (l->in == a->out || l->items[0].out == fused_source(spec_.block(layer), a->q))) ||
                            (latent && (l->in == latent->out || l->items[0].out == latent->kv ||
                                        l->items[0].out == fused_source(spec_.block(layer), latent->q_nope)));
      if (of_heads && !heads_fit) return;
      check_fused(fused_of(layer, l->items, inner ? Cut::inputs : Cut::outputs, a));
    } else if (const auto* m = std::get_if<Moe>(&op)) {
      Fused all{.experts = true};
      for (int e = 0; e < m->experts; ++e) {
        Fused wide = fused_of(layer, m->wide_of(e), Cut::outputs, nullptr);
        Fused down = fused_of(layer, {m->of_expert(m->down, e)}, Cut::inputs, nullptr);
        wide.experts = down.experts = true;
        all.shards.insert(all.shards.end(), wide.shards.begin(), wide.shards.end());
        all.shards.insert(all.shards.end(), down.shards.begin(), down.shards.end());
        check_shapes(wide);
        check_shapes(down);
      }
      check_one_scheme(all);
    }
  }

  void check_fused(const Fused& f) {
    check_shapes(f);
    if (f.shards.size() > 1) check_one_scheme(f);
  }

  static std::string scheme_of(const PlannedLinear& p) {
    if (p.keep) return "left as it is";
    if (p.blocks) return std::string(p.blocks->name);
    return p.recipe.spec.str() + (p.recipe.act_order == ActOrder::full ? " act=full" : "");
  }

  void check_one_scheme(const Fused& f) {
    if (!engine_.fuses) return;
    const PlannedLinear& first = *f.shards[0].linear;
    for (const Shard& s : f.shards)
      if (const std::string mine = scheme_of(*s.linear), theirs = scheme_of(first); mine != theirs)
        refuse(s.linear->linear.name,
               fmt::format("{} runs it as one with {}, so both need one scheme: {} here, {} there ({})", who(),
                           first.linear.name, mine, theirs, engine_.source));
  }

  // The row for a linear; refuses the linear where there is none.
  const FormatRule* row_of(const PlannedLinear& p) {
    for (const FormatRule* r : rows_)
      if (r->packing.empty() || r->packing == p.layout()) return r;
    refuse(p.linear.name, fmt::format("{} does not load {} of format {}", who(), p.layout(), plan_.format->name));
    return nullptr;
  }

  // What an engine says without looking at the shape; "" = nothing.
  std::string scheme_refusal(const FormatRule& r, const PlannedLinear& p) const {
    const QuantSpec& s = p.recipe.spec;
    const bool act_order = p.recipe.act_order == ActOrder::full && s.group != -1;
    if (tp_ > 1 && !r.splits)
      return fmt::format("does not split format {} over {} GPUs; --tp 1", plan_.format->name, tp_);
    if (r.bits && !(r.bits & 1u << s.bits)) {
      std::vector<int> known;
      for (int b = 1; b < 32; ++b)
        if (r.bits & 1u << b) known.push_back(b);
      return fmt::format("takes {} bits here, found {}", fmt::join(known, ", "), s.bits);
    }
    if (r.grids == FormatRule::Grids::symmetric && !s.symmetric)
      return "takes no zero points here; --sym, or --format awq or compressed-tensors";
    if (act_order && r.act_order == FormatRule::ActOrder::no)
      return "takes no groups in activation order; --act-order static keeps the order of the columns";
    if (s.activations != ActQuant::none && s.grid == Grid::integer && (s.bits != 8 || s.act_bits != 8))
      return "has no products of rounded inputs and integers below 8 bits that was checked with these files";
    if (r.needs_rounded_inputs && s.activations == ActQuant::none)
      return "takes no weights alone here; the inputs must be quantized too";
    const auto listed = std::find(r.groups.begin(), r.groups.end(), s.group);
    if (r.groups[0] != 0 && listed == r.groups.end() && s.out_group == 1) {
      std::vector<std::string> known;
      for (const int64_t g : r.groups)
        if (g != 0) known.push_back(g == -1 ? "one per row" : std::to_string(g));
      return fmt::format("takes groups of {} here, found {}", fmt::join(known, ", "),
                         s.group == -1 ? "one per row" : std::to_string(s.group));
    }
    return "";
  }

  // Inputs and outputs of a linear on one GPU; nothing where it cannot be cut evenly.
  std::optional<std::pair<int64_t, int64_t>> share_of(const Shard& s, Cut cut) const {
    const NamedLinear& l = s.linear->linear;
    const int64_t parts = s.copies_from > 0 ? std::min(tp_, s.copies_from) : tp_;
    const int64_t cut_size = cut == Cut::inputs ? l.in : l.out;
    if (!engine_.splits_heads) return std::pair{l.out, l.in};
    if (cut_size % parts != 0) return std::nullopt;
    return cut == Cut::inputs ? std::pair{l.out, l.in / parts} : std::pair{l.out / parts, l.in};
  }

  // Why one linear's share on a GPU does not hold whole groups, blocks and words; "" = it does.
  std::string share_refusal(const FormatRule& r, const PlannedLinear& p, int64_t out, int64_t in, bool merged) const {
    const QuantSpec& s = p.recipe.spec;
    const bool cut_in = in != p.linear.in, cut_out = out != p.linear.out;
    const auto not_whole = [&](const char* what, int64_t share, const std::string& unit) {
      return fmt::format("gives each of {} GPUs {} of its {}, which is no multiple of {}", tp_, share, what, unit);
    };
    if (s.out_group > 1 && s.group == -1) return "";  // one scale of all
    if (s.out_group > 1) {
      if (cut_in && in % s.group != 0) return not_whole("inputs", in, fmt::format("the block of {}", s.group));
      // Blocks of a fused linear must end where its parts end.
      if ((cut_out || merged) && out % s.out_group != 0)
        return not_whole("outputs", out, fmt::format("the block of {}", s.out_group));
      return "";
    }
    const int64_t group = p.blocks ? p.blocks->elements : s.group;
    if (group != -1 && in % group != 0) return not_whole("inputs", in, fmt::format("the group of {}", group));
    const int64_t word = std::lcm(32, s.bits) / s.bits;
    if (r.words_along_in && in % word != 0) return not_whole("inputs", in, fmt::format("the {} codes of a word", word));
    if (r.words_along_out && out % word != 0)
      return not_whole("outputs", out, fmt::format("the {} codes of a word", word));
    return "";
  }

  void check_shapes(const Fused& f) {
    int64_t fused_out = 0, fused_in = 0;
    const FormatRule* tiled = nullptr;
    bool even = true;
    for (const Shard& shard : f.shards) {
      const PlannedLinear& p = *shard.linear;
      const auto share = share_of(shard, f.cut);
      if (!share) {
        refuse(p.linear.name, fmt::format("{} cuts its {} {} into {} equal parts, which does not come out even", who(),
                                          f.cut == Cut::inputs ? p.linear.in : p.linear.out,
                                          f.cut == Cut::inputs ? "inputs" : "outputs", tp_));
        even = false;
        continue;
      }
      fused_out += share->first;
      fused_in = share->second;
      if (p.keep || p.layout().empty()) continue;
      const FormatRule* r = row_of(p);
      if (!r) continue;
      std::string why = scheme_refusal(*r, p);
      const bool merged = engine_.fuses && f.shards.size() > 1;
      if (why.empty()) why = share_refusal(*r, p, share->first, share->second, merged);
      if (why.empty()) {
        if (r->tile_out > 0) tiled = r;
      } else {
        refuse(p.linear.name, fmt::format("{} {} ({})", who(), why, r->source));
      }
    }
    if (!tiled || !even) return;
    if (f.experts && tiled->marlin_experts)
      check_expert_tile(f, fused_out, fused_in);
    else
      check_tile(f, *tiled, fused_out, fused_in);
  }

  void check_tile(const Fused& f, const FormatRule& r, int64_t out, int64_t in) {
    if (out % r.tile_out == 0 && in % r.tile_in == 0) return;
    if (r.either_way && out % r.tile_in == 0 && in % r.tile_out == 0) return;
    const std::string what = fmt::format("the kernel's tile is {} outputs by {} inputs, and a GPU's share is {} x {}",
                                         r.tile_out, r.tile_in, out, in);
    for (const Shard& s : f.shards) {
      if (s.linear->keep) continue;
      if (r.off_tile == FormatRule::OffTile::refused && !f.experts)
        refuse(s.linear->linear.name, fmt::format("{}: {} ({})", who(), what, r.source));
      else
        v_.notes[s.linear->linear.name] = fmt::format(
            "{}: {}; it {}", who(), what, r.off_tile == FormatRule::OffTile::padded ? "pads" : "takes a slower kernel");
    }
  }

  void check_expert_tile(const Fused& f, int64_t out, int64_t in) {
    constexpr std::array<int64_t, 4> kGroups{-1, 32, 64, 128};
    const bool wide = f.cut == Cut::outputs;
    const int64_t hidden = wide ? in : out, width = wide ? out / std::ssize(f.shards) : in;
    for (const Shard& s : f.shards) {
      if (s.linear->keep) continue;
      const int64_t group = s.linear->recipe.spec.group, unit = std::max<int64_t>(64, group);
      if (hidden % 128 == 0 && width % unit == 0 && std::find(kGroups.begin(), kGroups.end(), group) != kGroups.end())
        continue;
      v_.notes[s.linear->linear.name] = fmt::format(
          "{}: Marlin runs experts of groups of 32, 64, 128 or a row whose hidden size is a multiple of 128 and whose "
          "width on a GPU is one of {}, and here they are {} and {}; it takes a slower kernel (utils/marlin_utils.py "
          "check_moe_marlin_supports_layer)",
          who(), unit, hidden, width);
    }
  }

  const ModelSpec& spec_;
  const QuantPlan& plan_;
  const EngineRules& engine_;
  const int64_t tp_;
  std::vector<const FormatRule*> rows_;
  std::unordered_map<std::string_view, const PlannedLinear*> by_name_;
  EngineVerdict v_;
};

}  // namespace

const EngineRules& engine_rules(std::string_view name) {
  std::vector<std::string_view> known;
  for (const EngineRules& e : engines()) {
    if (e.name == name) return e;
    known.push_back(e.name);
  }
  fail(ErrorKind::usage, unknown_name("engine of --for", name, std::span<const std::string_view>(known)));
}

EngineVerdict check_engine(const ModelSpec& spec, const QuantPlan& plan, const EngineRules& engine, int64_t tp) {
  return Check(spec, plan, engine, tp).run();
}

}  // namespace fewbit
