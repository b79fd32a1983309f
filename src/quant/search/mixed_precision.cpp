#include "src/quant/search/mixed_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/quant/rule_match.h"
#include "src/quant/search/budget.h"
#include "src/quant/search/sensitivity.h"

namespace fewbit {
namespace {

constexpr int64_t kMostCalibrationWindows = 64, kMostHeldOutWindows = 16;
// Candidates further than this from the target are never worth their calibration time.
constexpr double kBitsBelow = 1.6, kBitsAbove = 4.5;

Windows slice(const Windows& w, int64_t begin, int64_t end) {
  return {.count = end - begin,
          .length = w.length,
          .ids = {w.ids.begin() + begin * w.length, w.ids.begin() + end * w.length},
          .source = w.source};
}

bool matched(const ModelSpec& spec, const std::vector<Rule>& rules, const NamedLinear& l) {
  return std::any_of(rules.begin(), rules.end(), [&](const Rule& r) { return means(r, spec, l); });
}

// The candidate whose size is nearest to the target: the model is probed where it will end up.
size_t nearest(const std::vector<QuantSpec>& specs, double target, int64_t in) {
  const auto distance = [&](const QuantSpec& s) { return std::abs(s.bits_per_weight(in) - target); };
  return static_cast<size_t>(
      std::min_element(specs.begin(), specs.end(),
                       [&](const QuantSpec& a, const QuantSpec& b) { return distance(a) < distance(b); }) -
      specs.begin());
}

// Bytes of a group of linears in a spec.
int64_t bytes_in(const CheckpointFormat& format, const std::map<std::string, NamedLinear>& linears,
                 const std::vector<std::string>& names, const QuantSpec& spec) {
  int64_t bytes = 0;
  std::string why;
  for (const std::string& name : names) {
    const NamedLinear& l = linears.at(name);
    bytes += packed_bytes(*choose_packing(format, spec, l.out, l.in, false, &why), spec, l.out, l.in, false);
  }
  return bytes;
}

}  // namespace

std::vector<QuantSpec> precision_candidates(const CheckpointFormat& format, const std::vector<NamedLinear>& linears,
                                            const QuantSpec& base, double target_bits) {
  std::vector<QuantSpec> specs;
  for (const int bits : {2, 3, 4, 5, 6, 8})
    for (const int64_t group : {128, 64, 32}) {
      QuantSpec s = base;
      s.bits = bits;
      s.group = group;
      const bool taken = std::all_of(linears.begin(), linears.end(), [&](const NamedLinear& l) {
        std::string why;
        const double b = s.bits_per_weight(l.in);
        return b > target_bits - kBitsBelow && b < target_bits + kBitsAbove &&
               choose_packing(format, s, l.out, l.in, false, &why);
      });
      if (taken) specs.push_back(s);
    }
  return specs;
}

namespace {

using Prices = std::vector<std::vector<PricedChoice>>;  // [unit][spec]

// The linears that no rule of the user decides.
struct FreeLinears {
  std::vector<NamedLinear> all{};
  std::map<std::string, NamedLinear> by_name{};
  double weights = 0;
};
FreeLinears free_linears(const ModelSpec& spec, const std::vector<Rule>& rules) {
  FreeLinears free;
  for (const NamedLinear& l : linears_of(spec)) {
    if (matched(spec, rules, l)) continue;
    free.all.push_back(l);
    free.by_name.emplace(l.name, l);
    free.weights += static_cast<double>(l.out * l.in);
  }
  return free;
}

void refuse_stated_choices(const Recipe& base) {
  if (base.bits || base.group)
    fail(ErrorKind::usage, "auto chooses bits and group sizes: leave them out of the recipe and give target-bits=4.25");
  if (base.activations.value_or(ActQuant::none) != ActQuant::none)
    fail(ErrorKind::usage, "auto chooses weights only; leave acts= out of the recipe");
}

// The bytes of every unit in every spec; costs are filled in when they are measured.
Prices bytes_of_choices(const CheckpointFormat& format, const FreeLinears& free, const std::vector<TiedLinears>& units,
                        const std::vector<QuantSpec>& specs) {
  Prices prices(units.size());
  for (size_t u = 0; u < units.size(); ++u)
    for (const QuantSpec& s : specs) prices[u].push_back({bytes_in(format, free.by_name, units[u].names(), s), 0});
  return prices;
}

int64_t least_bytes(const Prices& prices) {
  int64_t least = 0;
  for (const auto& choices : prices)
    least += std::min_element(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
               return a.bytes < b.bytes;
             })->bytes;
  return least;
}

// Adds the chosen spec of every unit to the plan, and what all of them cost.
void take_choices(const std::vector<TiedLinears>& units, const std::vector<QuantSpec>& specs, const Prices& prices,
                  const std::vector<size_t>& chosen, double weights, PrecisionPlan& plan) {
  int64_t bytes = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    const PricedChoice& p = prices[u][chosen[u]];
    plan.choices.push_back({units[u].names(), specs[chosen[u]], p.bytes, p.cost});
    plan.cost += p.cost;
    bytes += p.bytes;
  }
  plan.bits = 8.0 * static_cast<double>(bytes) / weights;
}

}  // namespace

PrecisionPlan choose_precision(Exec& ex, const Checkpoint& c, const Windows& windows, const PrecisionJob& job) {
  refuse_stated_choices(job.base);
  const FullRecipe base = resolve(job.base);
  const double target = job.base.target_bits.value_or(kDefaultTargetBits);
  const CheckpointFormat& format = checkpoint_format(base.format);
  const FreeLinears free = free_linears(c.spec, job.rules);
  if (windows.count < 2)
    fail(ErrorKind::usage, "auto holds a window of the calibration text out: give at least --samples 2");
  const std::vector<QuantSpec> specs = precision_candidates(format, free.all, base.spec, target);
  if (free.all.empty() || specs.empty())
    fail(ErrorKind::usage, fmt::format("auto has nothing to choose: {} linears are left to it and {} specs fit them in "
                                       "format {}",
                                       free.all.size(), specs.size(), base.format));
  const std::vector<TiedLinears> units =
      tied_linears(c.spec, [&](const std::string& name) { return !free.by_name.count(name); });
  Prices prices = bytes_of_choices(format, free, units, specs);
  const int64_t least = least_bytes(prices);
  const auto budget = static_cast<int64_t>(target * free.weights / 8);
  if (least > budget)
    fail(ErrorKind::usage, fmt::format("--target-bits {}: the smallest specs that format {} takes need {:.3f}", target,
                                       base.format, 8.0 * static_cast<double>(least) / free.weights));

  const int64_t held = std::clamp<int64_t>(windows.count / 8, 1, kMostHeldOutWindows);
  const Windows calibration = slice(windows, 0, std::min(kMostCalibrationWindows, windows.count - held));
  const Windows held_out = slice(windows, windows.count - held, windows.count);
  const auto cost = measure_sensitivity(ex, c, units,
                                        {.calibration = &calibration,
                                         .held_out = &held_out,
                                         .specs = specs,
                                         .probe = nearest(specs, target, free.all.front().in),
                                         .dtype = job.dtype,
                                         .seed = job.seed,
                                         .progress = job.progress});
  for (size_t u = 0; u < units.size(); ++u)
    for (size_t s = 0; s < specs.size(); ++s) prices[u][s].cost = cost[u][s];

  PrecisionPlan plan{
      .target_bits = target,
      .calibration_windows = calibration.count,
      .held_out_windows = held_out.count,
  };
  take_choices(units, specs, prices, choose_within(prices, budget), free.weights, plan);
  return plan;
}

std::map<std::string, Recipe> PrecisionPlan::recipes() const {
  std::map<std::string, Recipe> all;
  for (const PrecisionChoice& c : choices)
    for (const std::string& name : c.linears) all[name] = {.bits = c.spec.bits, .group = c.spec.group};
  return all;
}

std::string PrecisionPlan::summary() const {
  std::map<std::string, size_t> count;
  for (const PrecisionChoice& c : choices) count[c.spec.str()] += c.linears.size();
  std::string s = fmt::format("auto: {:.3f} of {} bits per weight, expected KL {:.5f}:", bits, target_bits, cost);
  for (const auto& [spec, n] : count) s += fmt::format(" {} x {},", n, spec);
  s.back() = ' ';
  return s + fmt::format("(measured on {} windows, {} held out)", calibration_windows, held_out_windows);
}

}  // namespace fewbit
