#include "src/quant/search/precision_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/checkpoint_format.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/quant/plan/engines.h"
#include "src/quant/plan/plan_kept.h"
#include "src/quant/rule_match.h"
#include "src/run/plan/serving_plan.h"

namespace fewbit {
namespace {

bool matched(const ModelSpec& spec, const std::vector<Rule>& rules, const NamedLinear& l) {
  return std::any_of(rules.begin(), rules.end(), [&](const Rule& r) { return means(r, spec, l); });
}

// The linears that neither a rule of the user nor the family decides.
std::map<std::string, NamedLinear> free_linears(const ModelSpec& spec, const std::vector<Rule>& rules) {
  std::map<std::string, NamedLinear> free;
  for (const NamedLinear& l : linears_of(spec))
    if (!matched(spec, rules, l) && kept_by_family(spec, l).empty()) free.emplace(l.name, l);
  return free;
}

// Whether somebody who loads the format takes a packed embedding: an engine, or our runner where the format is its own.
bool packed_embedding_loads(const CheckpointFormat& format) {
  bool known = false;
  for (const FormatRule& r : format_rules()) {
    if (r.format != format.name) continue;
    if (r.embedding != FormatRule::Embedding::no) return true;
    known = true;
  }
  return !known;
}

// Whether the ends are chosen for where nothing is said: where OUT as a whole has a size, of which ends in bf16 are the
// part that weighs most and matters least. With --for nothing is: what each engine takes of them depends on the family.
bool ends_by_themselves(const PrecisionJob& job) {
  const std::optional<Budget>& budget = job.base.budget;
  if (!budget || budget->of != Budget::Of::size || !job.engine.empty()) return false;
  const CheckpointFormat& format = checkpoint_format(resolve(job.base).format);
  return format.packed_ends && packed_embedding_loads(format);
}

// The ends that are chosen for too: those that no rule names.
std::vector<NamedLinear> free_ends(const ModelSpec& spec, const PrecisionJob& job) {
  std::vector<NamedLinear> free;
  if (!job.base.chooses_ends.value_or(ends_by_themselves(job))) return free;
  if (!job.engine.empty())
    fail(ErrorKind::usage, fmt::format("ends=on: whether {} loads a packed embedding or head of this format was not "
                                       "checked; leave it out, or --for",
                                       job.engine));
  for (NamedLinear& l : ends_of(spec))
    if (std::none_of(job.rules.begin(), job.rules.end(), [&](const Rule& r) { return r.glob == l.name; }))
      free.push_back(std::move(l));
  return free;
}

// Of an embedding that is no head a token reads one row.
PrecisionUnit unit_of_end(const ModelSpec& spec, const NamedLinear& l) {
  const bool rows = l.name + ".weight" == spec.embed && !spec.tied();
  return {.linears = {.layer = kOutsideBlocks, .probes = {{l.name}}},
          .share = rows ? 1.0 / static_cast<double>(l.out) : 1.0,
          .weights = static_cast<double>(l.out) * static_cast<double>(l.in)};
}

void refuse_stated_choices(const Recipe& base) {
  if (base.bits || base.group)
    fail(ErrorKind::usage, "auto chooses bits and group sizes: leave them out of the recipe and give target-bits=4.25");
  if (base.activations.value_or(ActQuant::none) != ActQuant::none)
    fail(ErrorKind::usage, "auto chooses weights only; leave acts= out of the recipe");
}

std::vector<PrecisionUnit> units_of(const ModelSpec& spec, const std::map<std::string, NamedLinear>& free,
                                    bool experts_together) {
  std::vector<PrecisionUnit> units;
  for (TiedLinears& tied : tied_linears(
           spec, [&](const std::string& name) { return !free.count(name); }, experts_together)) {
    PrecisionUnit unit{.linears = std::move(tied)};
    if (const auto* moe = std::get_if<Moe>(&spec.block(unit.linears.layer)[unit.linears.op]))
      unit.share = static_cast<double>(moe->top_k) / moe->experts;
    for (const std::string& name : unit.linears.names()) {
      const NamedLinear& l = free.at(name);
      unit.weights += static_cast<double>(l.out) * static_cast<double>(l.in);
    }
    units.push_back(std::move(unit));
  }
  return units;
}

// Bytes of each linear in a plan; an end that stays as it is stands in none.
using Sizes = std::map<std::string, int64_t>;
Sizes sizes_in(const Checkpoint& c, const QuantPlan& plan, int64_t PlannedLinear::*bytes) {
  Sizes sizes;
  for (const NamedLinear& l : ends_of(c.spec)) sizes[l.name] = stored_weight_bytes(c, l);
  for (const PlannedLinear& p : plan.linears) sizes[p.linear.name] = p.*bytes;
  return sizes;
}
int64_t bytes_of(const PrecisionUnit& unit, const Sizes& sizes) {
  int64_t bytes = 0;
  for (const std::string& name : unit.linears.names()) bytes += sizes.at(name);
  return bytes;
}

// What a plan of every free linear in one candidate says: the bytes of each linear, and who is refused.
struct Trial {
  Sizes bytes{};
  std::map<std::string, std::string> refused{};  // by linear
  std::string whole{};                           // a refusal of no linear
};

QuantPlan plan_with(const Checkpoint& c, const PrecisionJob& job, std::map<std::string, Recipe> chosen) {
  return make_plan(
      c, {.base = job.base, .rules = job.rules, .chosen = std::move(chosen), .engine = job.engine, .tp = job.tp});
}

Trial trial_of(const Checkpoint& c, const PrecisionJob& job, const std::map<std::string, NamedLinear>& free,
               const Candidate& candidate) {
  std::map<std::string, Recipe> chosen;
  for (const auto& [name, linear] : free) chosen[name] = candidate.over;
  const QuantPlan plan = plan_with(c, job, std::move(chosen));
  Trial trial{.bytes = sizes_in(c, plan, &PlannedLinear::out_bytes)};
  for (const Refusal& r : plan.refusals)
    if (trial.bytes.count(r.name))
      trial.refused.emplace(r.name, r.reason);
    else if (trial.whole.empty())
      trial.whole = r.name + ": " + r.reason;
  return trial;
}

// Adds the candidate to the units that take it; if so asked, only where all but the ends do. "" where it was added;
// else the first reason.
std::string offer(size_t candidate, const Trial& trial, std::vector<PrecisionUnit>& units, bool to_all_or_none) {
  if (!trial.whole.empty()) return trial.whole;
  std::string first;
  std::vector<PrecisionUnit*> takers;
  bool to_all = true;
  for (PrecisionUnit& unit : units) {
    bool taken = true;
    for (const std::string& name : unit.linears.names())
      if (const auto it = trial.refused.find(name); it != trial.refused.end()) {
        taken = false;
        if (first.empty()) first = name + ": " + it->second;
      }
    if (taken) takers.push_back(&unit);
    to_all = to_all && (taken || unit.linears.layer == kOutsideBlocks);
  }
  if (takers.empty() || (to_all_or_none && !to_all)) return first;
  for (PrecisionUnit* unit : takers) {
    unit->allowed.push_back(candidate);
    unit->bytes.push_back(bytes_of(*unit, trial.bytes));
  }
  return "";
}

// Ends that nobody asked for and that take no candidate stay as they are.
void leave_out_ends(const std::vector<Trial>& trials, std::vector<PrecisionUnit>& units) {
  std::erase_if(units, [&](const PrecisionUnit& unit) {
    return unit.linears.layer == kOutsideBlocks && std::all_of(trials.begin(), trials.end(), [&](const Trial& t) {
             return t.refused.count(unit.linears.names().front()) > 0;
           });
  });
}

// The first of its kind of scheme: integers of so many bits, or a float grid.
bool same_scheme(const Candidate& a, const Candidate& b) {
  return a.over.keep == b.over.keep && a.spec.grid == b.spec.grid && a.spec.bits == b.spec.bits &&
         a.spec.scale_dtype == b.spec.scale_dtype;
}

// A word that was named and that nothing takes would be passed over in silence.
void refuse_untaken(const Recipe& base, const std::vector<Candidate>& candidates,
                    const std::map<size_t, std::string>& refused) {
  if (base.schemes.empty() || std::find(base.schemes.begin(), base.schemes.end(), kAllSchemes) != base.schemes.end())
    return;
  for (const auto& [index, why] : refused) {
    const bool another = std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return same_scheme(c, candidates[index]) && !refused.count(static_cast<size_t>(&c - candidates.data()));
    });
    if (!another)
      fail(ErrorKind::unsupported,
           fmt::format("schemes= (--schemes): {} is taken for no linear: {}", candidates[index].name(), why));
  }
}

// The plan of one mix. Some formats have one scheme for all linears: known before anything is measured.
QuantPlan plan_of_mix(const Checkpoint& c, const PrecisionJob& job, const PrecisionChoices& choices) {
  std::map<std::string, Recipe> chosen;
  for (size_t u = 0; u < choices.units.size(); ++u) {
    const PrecisionUnit& unit = choices.units[u];
    const Candidate& candidate = choices.candidates[unit.allowed[u % unit.allowed.size()]];
    for (const std::string& name : unit.linears.names()) chosen[name] = candidate.over;
  }
  QuantPlan plan = plan_with(c, job, std::move(chosen));
  if (!plan.refusals.empty())
    fail(ErrorKind::unsupported, fmt::format("auto mixes schemes, and one mix of these is refused: {}: {}",
                                             plan.refusals.front().name, plan.refusals.front().reason));
  return plan;
}

// Bytes of all units in one candidate each, as the budget counts them.
template <class Bytes>
int64_t summed(const PrecisionChoices& choices, const Bytes& bytes_of) {
  int64_t sum = 0;
  for (const PrecisionUnit& unit : choices.units) sum += counted_bytes(unit, bytes_of(unit), choices.active);
  return sum;
}

// What a step of one sequence may read of the units: what the GPU reads in that time, but for all else that it reads.
int64_t bytes_of_step(const Checkpoint& c, const Budget& budget, int64_t units_as_they_are) {
  constexpr int64_t kContext = 2048;
  const GpuModel& gpu = gpu_model(budget.gpu);
  const ServingPlan plan =
      plan_serving(served(c), {.gpu = &gpu, .context = std::min(kContext, c.spec.max_positions), .prompt = 1});
  const double bytes_per_ms = gpu.read_gbs * 1e6;
  return static_cast<int64_t>((budget.step_ms - plan.stored_step_ms) * bytes_per_ms) + units_as_they_are;
}

void set_budget(const Checkpoint& c, const Recipe& base, const QuantPlan& mix, PrecisionChoices& choices) {
  const Budget budget = base.budget.value_or(Budget{});
  choices.active = budget.of == Budget::Of::active || budget.of == Budget::Of::step;
  for (const PrecisionUnit& unit : choices.units) choices.counted += unit.weights * (choices.active ? unit.share : 1);
  const auto in_plan = [&](int64_t PlannedLinear::*bytes) {
    const Sizes sizes = sizes_in(c, mix, bytes);
    return summed(choices, [&](const PrecisionUnit& unit) { return bytes_of(unit, sizes); });
  };
  std::string said = fmt::format("--target-bits {}", base.target_bits.value_or(kDefaultTargetBits));
  if (budget.of == Budget::Of::size) {
    choices.budget = budget.bytes - (mix.out_bytes - in_plan(&PlannedLinear::out_bytes));
    said = "--budget " + human_bytes(budget.bytes);
  } else if (budget.of == Budget::Of::step) {
    choices.budget = bytes_of_step(c, budget, in_plan(&PlannedLinear::source_bytes));
    said = fmt::format("--budget {}ms@{}", budget.step_ms, budget.gpu);
  } else {
    choices.budget = static_cast<int64_t>(base.target_bits.value_or(kDefaultTargetBits) * choices.counted / 8);
  }
  const int64_t least = summed(
      choices, [](const PrecisionUnit& unit) { return *std::min_element(unit.bytes.begin(), unit.bytes.end()); });
  if (least > choices.budget)
    fail(ErrorKind::usage,
         fmt::format("{}: {:.3f} bits per weight for what auto chooses; the smallest specs that format {} takes need "
                     "{:.3f}",
                     said, std::max(0.0, 8.0 * static_cast<double>(choices.budget) / choices.counted), mix.format->name,
                     8.0 * static_cast<double>(least) / choices.counted));
}

}  // namespace

int64_t counted_bytes(const PrecisionUnit& unit, int64_t bytes, bool active) {
  return active ? std::llround(static_cast<double>(bytes) * unit.share) : bytes;
}

PrecisionChoices precision_choices(const Checkpoint& c, const PrecisionJob& job) {
  refuse_stated_choices(job.base);
  const std::string format = resolve(job.base).format;
  const bool integers = job.base.schemes.empty();
  std::map<std::string, NamedLinear> free = free_linears(c.spec, job.rules);
  PrecisionChoices choices;
  choices.candidates = candidates_of(job.base);
  choices.units = units_of(c.spec, free, !integers || !job.engine.empty());
  for (const NamedLinear& l : free_ends(c.spec, job)) {
    choices.units.push_back(unit_of_end(c.spec, l));
    free.emplace(l.name, l);
  }
  if (choices.units.empty()) fail(ErrorKind::usage, "auto has nothing to choose: no linear is left to it");
  std::vector<Trial> trials;
  trials.reserve(choices.candidates.size());
  for (const Candidate& candidate : choices.candidates) trials.push_back(trial_of(c, job, free, candidate));
  if (!job.base.chooses_ends) leave_out_ends(trials, choices.units);
  std::map<size_t, std::string> refused;
  for (size_t i = 0; i < choices.candidates.size(); ++i)
    if (std::string why = offer(i, trials[i], choices.units, integers); !why.empty())
      refused.emplace(i, std::move(why));
  refuse_untaken(job.base, choices.candidates, refused);
  for (const PrecisionUnit& unit : choices.units)
    if (unit.allowed.empty())
      fail(ErrorKind::unsupported,
           fmt::format("auto has nothing to choose for {}: format {}{} takes none of {} specs there; {}",
                       unit.linears.names().front(), format, job.engine.empty() ? "" : " for " + job.engine,
                       choices.candidates.size(), refused.empty() ? "" : refused.begin()->second));
  set_budget(c, job.base, plan_of_mix(c, job, choices), choices);
  return choices;
}

}  // namespace fewbit
