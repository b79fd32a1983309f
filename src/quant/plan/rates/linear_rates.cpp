// Rates of sums and linears, and a run's ops and methods once each, by the same probes.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/gram.h"
#include "kernels/statistics/gram_lanes.h"
#include "src/core/host_blocks.h"
#include "src/core/inline_parallel.h"
#include "src/core/parallel.h"
#include "src/quant/loop/block_encoding.h"
#include "src/quant/loop/measure.h"
#include "src/quant/plan/rates/rate_probe.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

// That the sums of a probe are of. A GPU is asked for a whole chunk, and so are many threads: their sums go through
// memory once for each, which few tokens would make too much of. A thread or two take too long for that.
constexpr int64_t kTokens = 512;
constexpr int kManyThreads = 4;
int64_t tokens_of(const Exec& ex) {
  return ex.on_cuda() || thread_count() >= kManyThreads ? gram_chunk(ex.device().kind) : kTokens;
}
// What rows of a linear take is a difference of two times, of which each is off by what else the machine does: the rows
// are multiplied until they take this many seconds, or are as many as large linears have: never more than the largest
// of the plan holds, so that the measurement stays in the memory that the run has.
constexpr double kRowsShortest = 4e-2;
constexpr int64_t kMostRows = 16384;
// Of a linear that is coded once for its kernels' sake: those of products over rows do not depend on their number.
constexpr int64_t kWarmRows = 1024;

// Sums over fewer rows than they are wide are singular, where those of a calibration are not: a method would damp and
// factor them again and again. The mean of the diagonal on top of it ends that.
void lift(Exec& ex, const Tensor& gram) {
  const Tensor d = ex.alloc(DType::f32, {gram.cols()});
  diagonal(ex, gram, d);
  const Tensor host = ex.to_host(d);
  const double sum = std::accumulate(host.as<float>(), host.as<float>() + host.numel(), 0.0);
  std::fill_n(host.as<float>(), host.numel(), static_cast<float>(sum / static_cast<double>(host.numel())));
  add_diagonal(ex, ex.to_device(host), gram);
}

// One linear as BlockCoder codes and measures it.
struct Coded {
  double coding = 0, measuring = 0;
};
Coded code_once(Bench& bench, PlannedLinear p, int64_t out, int64_t in, const InputStats* stats, bool codes_stay) {
  Exec& ex = bench.ex;
  p.linear.out = out;
  p.linear.in = in;
  if (p.recipe.spec.out_group > out) p.recipe.spec.out_group = out;
  const Tensor w = bench.values(DType::f32, out, in, 7);
  const auto timed = [&](auto&& work) {
    ex.sync();
    const Stopwatch t;
    work();
    ex.sync();
    return t.seconds();
  };
  Coded c;
  LinearRecord record;
  if (p.blocks) {
    EncodedBlocks e;
    c.coding = timed([&] { e = encode_blocks(ex, p, w, stats); });
    c.measuring = timed([&] { measure(ex, w, ex.to_device(e.values), std::nullopt, stats, record); });
    return c;
  }
  MethodResult r;
  c.coding = timed([&] {
    LinearJob job = job_of(p, w, stats);
    job.allow_rtn = true;
    job.codes_stay = codes_stay && p.recipe.spec.turn == 0;
    r = p.recipe.method->quantize(ex, job);
  });
  if (p.recipe.spec.activations == ActQuant::tensor) r.linear.input_scale = 1;
  c.measuring = timed([&] { measure(ex, w, r.linear, r.there, stats, record); });
  return c;
}

// The mean of some where one is over soon. Not the least: a run that is long has its share of what else the machine
// does. A GPU's clock is steadier.
template <class F>
Coded usual(const Exec& ex, const F& code) {
  const double enough = (ex.on_cuda() ? 1 : 4) * kShortest;
  Coded sum;
  int times = 0;
  do {
    const Coded c = code();
    sum.coding += c.coding;
    sum.measuring += c.measuring;
    ++times;
  } while (times < 3 && sum.coding + sum.measuring < enough);
  return {sum.coding / times, sum.measuring / times};
}

// The rates of a recipe's linears, from a few rows and more of them at each width.
LinearRates linear_rates(Bench& bench, const PlannedLinear& p, const std::vector<int64_t>& widths, int64_t largest,
                         bool crossed, bool codes_stay, const RateOptions& o, double seconds) {
  const Exec& ex = bench.ex;
  const bool sums = o.chunks.windows > 0 && has(p.recipe.needs(), Needs::gram);
  const int64_t few = int64_t{16} * thread_count();
  Points row, system, factor, measuring;
  std::vector<int64_t> whole = widths;
  if (p.blocks)  // an encoder takes whole blocks; the linear's own width is among those that stay
    std::erase_if(whole, [&](int64_t n) { return n % p.blocks->elements != 0; });
  if (p.recipe.two_of_four) std::erase_if(whole, [](int64_t n) { return n % 4 != 0; });
  // A GPU is far from busy with a narrow linear, so that a wide one takes little longer.
  at_widths(whole, seconds, sums && !ex.on_cuda() ? 1.5 : 1, [&](int64_t n) {
    if (p.recipe.spec.group > 0 && n % p.recipe.spec.group != 0 && n % kNarrowest == 0) return;
    std::optional<Sums> s;
    if (sums) s = sums_of(bench, n, crossed, o.dtype);
    const InputStats* stats = s ? &s->stats : nullptr;
    const auto once = [&](int64_t out) { return code_once(bench, p, out, n, stats, codes_stay); };
    const auto of = [&](int64_t out) {
      if (ex.on_cuda()) (void)once(out);  // the first of a shape, by which a GPU loads kernels and takes memory
      return usual(ex, [&] { return once(out); });
    };
    if (ex.on_cuda()) (void)once(few);
    const Coded first = usual(ex, [&] {
      if (s) s->stats.factor = {}, s->stats.shift = {};
      return once(few);
    });
    const Coded less = usual(ex, [&] { return once(few); });
    int64_t many = 4 * few;
    const auto fit = [&] { return many < kMostRows && 4 * many * n <= largest; };
    // What a GPU takes for a few rows is no measure of many: it is asked for them at once.
    if (ex.on_cuda() && 4 * less.coding < seconds / 4)
      while (fit()) many *= 4;
    Coded more = of(many);
    while (more.coding - less.coding < kRowsShortest && fit() && 4 * more.coding < seconds / 4) more = of(many *= 4);
    const double rows = static_cast<double>(many - few);
    const double each = std::max(0.0, more.coding - less.coding) / rows;
    row.emplace_back(n, each);
    system.emplace_back(n, std::max(0.0, less.coding - each * static_cast<double>(few)));
    factor.emplace_back(n, std::max(0.0, first.coding - less.coding));
    measuring.emplace_back(n, std::max(0.0, more.measuring - less.measuring) / rows);
  });
  return {
      .row = law_of(1, row), .system = law_of(2, system), .factor = law_of(2, factor), .measure = law_of(1, measuring)};
}

// The linears that have one rate_key(): the one with the fewest weights, and the widths of all.
struct OfOneKey {
  const PlannedLinear* smallest = nullptr;
  std::set<int64_t> widths{};
};
std::map<std::string, OfOneKey> by_key(const QuantPlan& plan) {
  std::map<std::string, OfOneKey> all;
  for (const PlannedLinear& p : plan.linears) {
    if (p.keep || p.lossless || p.layout().empty()) continue;
    OfOneKey& of = all[rate_key(p)];
    if (!of.smallest || p.linear.out * p.linear.in < of.smallest->linear.out * of.smallest->linear.in) of.smallest = &p;
    of.widths.insert(p.linear.in);
  }
  return all;
}

int64_t largest_linear(const QuantPlan& plan) {
  int64_t most = 0;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) most = std::max(most, p.linear.out * p.linear.in);
  return most;
}

}  // namespace

Sums sums_of(Bench& bench, int64_t n, bool crossed, DType dtype) {
  Exec& ex = bench.ex;
  const int64_t tokens = tokens_of(ex);
  const Tensor x = bench.values(dtype, tokens, n, 6);
  const GramLanes lanes(ex, true);
  Sums s;
  s.stats.tokens = tokens;
  s.stats.gram = ex.alloc_zeros(DType::f32, {n, n});
  const auto seconds = [&](ConstTensorView full) {
    return bench.seconds_of([&] { lanes.add(x, full, s.stats.gram, s.stats.cross, {}, {}); }) /
           static_cast<double>(tokens);
  };
  if (bench.timed || !crossed) s.gram = seconds({});
  if (crossed) {
    s.stats.cross = ex.alloc_zeros(DType::f32, {n, n});
    s.cross = std::max(0.0, seconds(x) - s.gram);
  }
  ex.zero(s.stats.gram);
  add_gram_half(ex, x, s.stats.gram);
  fill_gram_half(ex, s.stats.gram);
  lift(ex, s.stats.gram);
  if (!crossed) return s;
  ex.copy(s.stats.gram, s.stats.cross);  // the shift of targets takes as long whatever it is
  return s;
}

void measure_linears(Bench& bench, const QuantPlan& plan, const std::vector<int64_t>& widths, bool crossed,
                     const RateOptions& o, Rates& r) {
  const int64_t largest = largest_linear(plan);
  const std::map<std::string, OfOneKey> keys = by_key(plan);
  for (const auto& [key, of] : keys) {
    const double share = o.budget / 2 / static_cast<double>(keys.size());
    r.linears[key] = linear_rates(bench, *of.smallest, widths, largest, crossed, plan.memory.beside > 0, o, share);
    r.linears[key].pack = pack_seconds(bench, *of.smallest);
  }
}

void warm_up(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const RateOptions& o) {
  const InlineParallel alone;
  const Stopwatch timer;
  Bench bench(ex, false);
  const bool calibrates = o.chunks.windows > 0, crossed = has(plan.needs, Needs::cross);
  for (size_t kind = 0; calibrates && kind < c.spec.kinds.size(); ++kind)
    (void)op_seconds(bench, c, static_cast<int>(kind), o);
  std::map<int64_t, std::vector<const PlannedLinear*>> of_width;
  for (const auto& [key, of] : by_key(plan))
    for (const int64_t in : of.widths) of_width[in].push_back(of.smallest);
  const int64_t largest = largest_linear(plan);
  for (const auto& [in, linears] : of_width) {
    std::optional<Sums> sums;  // of the first that asks for them
    for (const PlannedLinear* p : linears) {
      if (timer.seconds() > o.budget) break;  // of many recipes, what is left is loaded when it is met
      const bool sees = calibrates && has(p->recipe.needs(), Needs::gram);
      if (sees && !sums) sums = sums_of(bench, in, crossed, o.dtype);
      (void)code_once(bench, *p, std::min(kWarmRows, largest / in), in, sees ? &sums->stats : nullptr,
                      plan.memory.beside > 0);
    }
  }
  ex.sync();
  drop_kept_blocks();  // as behind a measurement: what it ran on must not stand beside the run's own memory
}

}  // namespace fewbit
