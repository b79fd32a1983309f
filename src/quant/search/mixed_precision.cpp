#include "src/quant/search/mixed_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/quant/search/sensitivity_memory.h"

namespace fewbit {
namespace {

Windows slice(const Windows& w, int64_t begin, int64_t end) {
  return {.count = end - begin,
          .length = w.length,
          .ids = {w.ids.begin() + begin * w.length, w.ids.begin() + end * w.length},
          .source = w.source};
}

// What the measurement is asked for a unit: its candidates but for those that change nothing.
UnitSpecs specs_of(const PrecisionUnit& unit, const std::vector<Candidate>& candidates, double target) {
  UnitSpecs specs{.linears = unit.linears};
  double nearest = 0;
  for (size_t i = 0; i < unit.allowed.size(); ++i) {
    const Candidate& c = candidates[unit.allowed[i]];
    if (c.over.keep) continue;
    // The model is probed where it will end up.
    const double distance = std::abs(8.0 * static_cast<double>(unit.bytes[i]) / unit.weights - target);
    if (specs.specs.empty() || distance < nearest) specs.probe = specs.specs.size(), nearest = distance;
    specs.specs.push_back(c.spec);
  }
  return specs;
}

// A unit with the price of each of its schemes, nothing chosen yet.
PrecisionChoice offer_of(const PrecisionUnit& unit, const std::vector<Candidate>& candidates,
                         const std::vector<double>& cost) {
  PrecisionChoice offer{.linears = unit.linears.names(),
                        .offered = {},
                        .weights = unit.weights,
                        .share = unit.share,
                        .end = unit.linears.layer == kOutsideBlocks};
  size_t measured = 0;
  for (size_t i = 0; i < unit.allowed.size(); ++i) {
    const Candidate& c = candidates[unit.allowed[i]];
    offer.offered.push_back({c, unit.bytes[i], c.over.keep ? 0 : cost[measured++]});
  }
  return offer;
}

}  // namespace

StateRoom room_to_measure(const Exec& ex, const Checkpoint& c, const PrecisionJob& job, const PrecisionChoices& choices,
                          int64_t windows, int64_t length) {
  std::vector<TiedLinears> linears;
  linears.reserve(choices.units.size());
  for (const PrecisionUnit& u : choices.units) linears.push_back(u.linears);
  MemoryLimits limits = job.limits;
  if (ex.on_cuda()) limits.device = std::min(limits.device, ex.free_bytes());
  const MemoryPlan m =
      sensitivity_memory(c, linears, measured_windows(windows), length, job.dtype, ex.device().kind, limits);
  if (!m.refusal.empty())
    fail(ErrorKind::memory, "auto measures with the whole model in memory: " + m.refusal +
                                "; fewer --samples or a shorter --seq-len take less, or choose the bits with --set");
  return m.room;
}

std::map<std::string, Recipe> smallest_recipes(const PrecisionChoices& choices) {
  std::map<std::string, Recipe> all;
  for (const PrecisionUnit& u : choices.units) {
    const size_t i = static_cast<size_t>(std::min_element(u.bytes.begin(), u.bytes.end()) - u.bytes.begin());
    for (const std::string& name : u.linears.names()) all[name] = choices.candidates[u.allowed[i]].over;
  }
  return all;
}

PrecisionPlan choose_precision(Exec& ex, const Checkpoint& c, const Windows& windows, const PrecisionJob& job,
                               const PrecisionChoices& choices) {
  if (windows.count < 2)
    fail(ErrorKind::usage, "auto holds a window of the calibration text out: give at least --samples 2");
  const StateRoom room = room_to_measure(ex, c, job, choices, windows.count, windows.length);
  const MeasuredWindows measured = measured_windows(windows.count);
  const Windows calibration = slice(windows, 0, measured.calibration);
  const Windows held_out = slice(windows, windows.count - measured.held_out, windows.count);
  PrecisionPlan plan{
      .target_bits = job.base.counts_bits() ? job.base.target_bits.value_or(kDefaultTargetBits)
                                            : 8.0 * static_cast<double>(choices.budget) / choices.counted,
      .counts_active = choices.active,
      .calibration_windows = calibration.count,
      .held_out_windows = held_out.count,
  };
  std::vector<UnitSpecs> units;
  units.reserve(choices.units.size());
  for (const PrecisionUnit& u : choices.units) units.push_back(specs_of(u, choices.candidates, plan.target_bits));
  const auto cost = measure_sensitivity(ex, c, units,
                                        {.calibration = &calibration,
                                         .held_out = &held_out,
                                         .dtype = job.dtype,
                                         .seed = job.seed,
                                         .state_room = room,
                                         .progress = job.progress});
  std::vector<std::vector<PricedChoice>> prices;
  for (size_t u = 0; u < units.size(); ++u) {
    plan.choices.push_back(offer_of(choices.units[u], choices.candidates, cost[u]));
    prices.emplace_back();
    for (const OfferedScheme& s : plan.choices.back().offered)
      prices.back().push_back({counted_bytes(choices.units[u], s.bytes, choices.active), s.cost});
  }
  const std::vector<size_t> chosen = choose_within(prices, choices.budget);
  int64_t bytes = 0;
  for (size_t u = 0; u < chosen.size(); ++u) {
    plan.choices[u].chosen = chosen[u];
    plan.cost += prices[u][chosen[u]].cost;
    bytes += prices[u][chosen[u]].bytes;
  }
  plan.bits = 8.0 * static_cast<double>(bytes) / choices.counted;
  return plan;
}

std::map<std::string, Recipe> PrecisionPlan::recipes() const {
  std::map<std::string, Recipe> all;
  for (const PrecisionChoice& c : choices)
    for (const std::string& name : c.linears) all[name] = c.scheme().candidate.over;
  return all;
}

std::string PrecisionPlan::summary() const {
  std::map<std::string, size_t> count;
  for (const PrecisionChoice& c : choices) count[c.scheme().candidate.name()] += c.linears.size();
  std::string s = fmt::format("auto: {:.3f} of {:.6g} bits per weight{}, expected KL {:.5f}:", bits, target_bits,
                              counts_active ? " that a token reads" : "", cost);
  for (const auto& [scheme, n] : count) s += fmt::format(" {} x {},", n, scheme);
  s.back() = ' ';
  for (const PrecisionChoice& c : choices)
    if (c.end) s += fmt::format("with {} in {} ", c.linears.front(), c.scheme().candidate.name());
  return s + fmt::format("(measured on {} windows, {} held out)", calibration_windows, held_out_windows);
}

}  // namespace fewbit
