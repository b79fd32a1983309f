#include "src/quant/plan/rates/rates.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <set>

#include "kernels/exec/rough_products.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/gram.h"
#include "kernels/statistics/gram_lanes.h"
#include "src/core/hash.h"
#include "src/core/host_blocks.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/quant/loop/block_encoding.h"
#include "src/quant/loop/measure.h"
#include "src/quant/plan/rates/rate_probe.h"
#include "src/quant/rounding.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

// That the sums of a probe are of. A GPU is asked for a whole chunk, and so are many threads: their sums go through
// memory once for each, which few tokens would make too much of. A thread or two take too long for that.
constexpr int64_t kTokens = 512;
constexpr int kManyThreads = 4;
int64_t tokens_of(const Exec& ex) {
  return ex.on_cuda() || thread_count() >= kManyThreads ? gram_chunk(ex.device().kind) : kTokens;
}
constexpr int64_t kNarrowest = 512;  // width of a probe between the model's own: all groups and blocks divide it
constexpr double kShortest = 1e-2;   // seconds: what is over sooner is measured again; a GPU's clock is steadier
double shortest(const Exec& ex) { return ex.on_cuda() ? kShortest / 2 : kShortest; }
// What rows of a linear take is a difference of two times, of which each is off by what else the machine does: the rows
// are multiplied until they take this many seconds, or are as many as large linears have: never more than the largest
// of the plan holds, so that the measurement stays in the memory that the run has.
constexpr double kRowsShortest = 4e-2;
constexpr int64_t kMostRows = 16384;
constexpr int kConsumers = 3;            // linears behind an absorber, as q, k and v
constexpr int64_t kTransformRows = 128;  // of each: as many as searches judge

// Widths of linears' inputs in the model, ascending, and below and between them others, by which a CPU finds how wide
// it can get in the time. A GPU gets as wide as the model, and a law wants one other point, at most half as wide.
std::vector<int64_t> widths_of(const QuantPlan& plan, bool on_gpu) {
  std::set<int64_t> widths;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) widths.insert(p.linear.in);
  const int64_t most = widths.empty() ? 0 : *widths.rbegin();
  const bool enough = on_gpu && most > 0 && 2 * *widths.begin() <= most;
  for (int64_t w = kNarrowest; w < most && !enough; w *= 2)
    if (!on_gpu || (2 * w <= most && 4 * w > most)) widths.insert(w);
  return {widths.begin(), widths.end()};
}

int64_t largest_linear(const QuantPlan& plan) {
  int64_t most = 0;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) most = std::max(most, p.linear.out * p.linear.in);
  return most;
}

using Points = std::vector<std::pair<int64_t, double>>;

// Few of the rows of `some_values` are their own, so that wide sums of them are singular, where those of a calibration
// are not: a method would damp and factor them again and again. The mean of the diagonal on top of it ends that.
void lift(Exec& ex, const Tensor& gram) {
  const Tensor d = ex.alloc(DType::f32, {gram.cols()});
  diagonal(ex, gram, d);
  const Tensor host = ex.to_host(d);
  const double sum = std::accumulate(host.as<float>(), host.as<float>() + host.numel(), 0.0);
  std::fill_n(host.as<float>(), host.numel(), static_cast<float>(sum / static_cast<double>(host.numel())));
  add_diagonal(ex, ex.to_device(host), gram);
}

// Statistics n wide of values that are alike, as a block's are in both streams, and what they cost, made as the run
// makes them: both sums at a time.
struct Sums {
  InputStats stats{};
  double gram = 0, cross = 0;  // seconds for a token
};
Sums sums_of(Exec& ex, int64_t n, bool crossed, DType dtype) {
  const int64_t tokens = tokens_of(ex);
  const Tensor x = some_values(ex, dtype, tokens, n, 6);
  const GramLanes lanes(ex, true);
  Sums s;
  s.stats.tokens = tokens;
  s.stats.gram = ex.alloc_zeros(DType::f32, {n, n});
  const auto seconds = [&](ConstTensorView full) {
    return seconds_of(ex, [&] { lanes.add(x, full, s.stats.gram, s.stats.cross, {}, {}); }) /
           static_cast<double>(tokens);
  };
  s.gram = seconds({});
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

// One linear as BlockCoder codes and measures it.
struct Coded {
  double coding = 0, measuring = 0;
};
Coded code_once(Exec& ex, PlannedLinear p, int64_t out, int64_t in, const InputStats* stats, bool codes_stay) {
  p.linear.out = out;
  p.linear.in = in;
  if (p.recipe.spec.out_group > out) p.recipe.spec.out_group = out;
  const Tensor w = some_values(ex, DType::f32, out, in, 7);
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
// does.
template <class F>
Coded usual(const F& code) {
  Coded sum;
  int times = 0;
  do {
    const Coded c = code();
    sum.coding += c.coding;
    sum.measuring += c.measuring;
    ++times;
  } while (times < 3 && sum.coding + sum.measuring < 4 * kShortest);
  return {sum.coding / times, sum.measuring / times};
}

// The rates of a recipe's linears, from a few rows and more of them at each width.
LinearRates linear_rates(Exec& ex, const PlannedLinear& p, const std::vector<int64_t>& widths, int64_t largest,
                         bool crossed, bool codes_stay, const RateOptions& o, double seconds) {
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
    if (sums) s = sums_of(ex, n, crossed, o.dtype);
    const InputStats* stats = s ? &s->stats : nullptr;
    const auto once = [&](int64_t out) { return code_once(ex, p, out, n, stats, codes_stay); };
    const auto of = [&](int64_t out) {
      if (ex.on_cuda()) (void)once(out);  // the first of a shape, by which a GPU loads kernels and takes memory
      return usual([&] { return once(out); });
    };
    if (ex.on_cuda()) (void)once(few);
    const Coded first = usual([&] {
      if (s) s->stats.factor = {}, s->stats.shift = {};
      return once(few);
    });
    const Coded less = usual([&] { return once(few); });
    Coded more = of(4 * few);
    int64_t many = 4 * few;
    while (more.coding - less.coding < kRowsShortest && many < kMostRows && 4 * many * n <= largest &&
           4 * more.coding < seconds / 4)
      more = of(many *= 4);
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

// A norm with linears behind it, rewritten by the transform: seconds for one of the linears.
double transform_seconds(Exec& ex, const Transform& t, const QuantPlan& plan, const PlannedLinear& like, int64_t n) {
  std::vector<BlockOp> ops = {Norm{Slot::x, Slot::h, NormKind::rms, "norm", n, 1e-6f}, Linears{Slot::h, {}}};
  TransformJob job{.ops = &ops, .migration = plan.migration};
  BlockF32 block;
  constexpr Slot kOut[kConsumers] = {Slot::q, Slot::k, Slot::v};
  for (int i = 0; i < kConsumers; ++i) {
    const std::string name = std::string("linear") += static_cast<char>('0' + i);
    std::get<Linears>(ops[1]).items.push_back({name, kOut[i], kTransformRows, n});
    job.targets[name] = {like.recipe.spec, like.recipe.effort, like.recipe.method};
    block.weights[name + ".weight"] =
        some_values(ex, DType::f32, kTransformRows, n, uint64_t{8} + static_cast<uint64_t>(i));
  }
  block.vectors["norm.weight"].value.assign(static_cast<size_t>(n), 1.f);
  job.absorbers = usable_absorbers(ops, job.targets);
  if (job.absorbers.empty()) return 0;
  ActivationStats& s = job.stats[job.absorbers[0].name];
  s.input = sums_of(ex, n, false, DType::f32).stats;
  s.absmax = ex.alloc_zeros(DType::f32, {n});
  s.abssum = ex.alloc_zeros(DType::f64, {n});
  s.sample = some_values(ex, DType::f32, 4 * kTokens, n, 6);
  column_stats(ex, s.sample.view().row_range(0, kTokens), {}, s.absmax, s.abssum);
  if (ex.on_cuda()) t.apply(ex, job, block);  // loads its kernels
  ex.sync();
  const Stopwatch timer;
  t.apply(ex, job, block);
  ex.sync();
  return timer.seconds() / kConsumers;
}

void measure_sums(Exec& ex, const std::vector<int64_t>& widths, bool crossed, const RateOptions& o, Rates& r) {
  Points gram, cross;
  at_widths(widths, o.budget / 6, 2, [&](int64_t n) {
    const Sums s = sums_of(ex, n, crossed, o.dtype);
    gram.emplace_back(n, s.gram);
    cross.emplace_back(n, s.cross);
  });
  r.gram = law_of(1, gram);
  r.cross = law_of(1, cross);
}

void measure_linears(Exec& ex, const QuantPlan& plan, const std::vector<int64_t>& widths, bool crossed,
                     const RateOptions& o, Rates& r) {
  std::map<std::string, const PlannedLinear*> smallest;
  for (const PlannedLinear& p : plan.linears) {
    if (p.keep || p.lossless || p.layout().empty()) continue;
    const PlannedLinear*& at = smallest[rate_key(p)];
    if (!at || p.linear.out * p.linear.in < at->linear.out * at->linear.in) at = &p;
  }
  const int64_t largest = largest_linear(plan);
  for (const auto& [key, p] : smallest) {
    const double share = o.budget / 2 / static_cast<double>(smallest.size());
    r.linears[key] = linear_rates(ex, *p, widths, largest, crossed, plan.memory.beside > 0, o, share);
    r.linears[key].pack = pack_seconds(ex, *p);
  }
  const auto like = std::find_if(plan.linears.begin(), plan.linears.end(),
                                 [](const PlannedLinear& p) { return !p.keep && !p.lossless && p.recipe.method; });
  if (o.chunks.windows == 0 || like == plan.linears.end()) return;
  for (const Transform* t : plan.transforms) {
    Points points;
    at_widths(widths, o.budget / 2, 2,
              [&](int64_t n) { points.emplace_back(n, transform_seconds(ex, *t, plan, *like, n)); });
    r.transforms[std::string(t->name)] = law_of(1, points);
  }
}

}  // namespace

double Law::at(int64_t n) const {
  const double p = std::pow(static_cast<double>(n), power);
  return low * p + high * p * static_cast<double>(n);
}

Law law_of(int power, const std::vector<std::pair<int64_t, double>>& points) {
  Law law{.power = power};
  if (points.empty()) return law;
  const auto [n2, t2] = points.back();
  const auto b = static_cast<double>(n2);
  const double y2 = t2 / std::pow(b, power);  // low + high * n
  law.high = y2 / b;
  if (points.size() == 1) return law;
  // Points that lie close tell little of a slope.
  const auto far = std::find_if(points.rbegin() + 1, points.rend(), [&](const auto& p) { return 2 * p.first <= n2; });
  const auto [n1, t1] = far == points.rend() ? points.front() : *far;
  const auto a = static_cast<double>(n1);
  const double slope = (y2 - t1 / std::pow(a, power)) / (b - a);
  law.high = std::clamp(slope, 0.0, y2 / b);
  law.low = y2 - law.high * b;
  return law;
}

std::string rate_key(const PlannedLinear& p) { return fmt::format("{} {}", p.recipe.str(), p.layout()); }

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(Exec& ex, const std::function<void()>& work) {
  // The first call says how often, and does not count: a mean that ends with a call that was held up is too long.
  ex.sync();
  const Stopwatch once;
  work();
  ex.sync();
  const double first = once.seconds();
  // A GPU is waited for once: in the run nothing waits between ops either.
  const double most = ex.on_cuda() ? 64 : 8;
  const int times = static_cast<int>(std::clamp(std::ceil(shortest(ex) / std::max(first, 1e-9)), 1., most));
  const Stopwatch t;
  for (int i = 0; i < times; ++i) work();
  ex.sync();
  return t.seconds() / times;
}

Tensor some_values(Exec& ex, DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  constexpr int64_t kMost = int64_t{1} << 20;  // made anew; rows behind them are copies
  const int64_t fresh = std::min(rows, std::max<int64_t>(1, kMost / cols));
  const Tensor host = Tensor::host(DType::f32, {fresh, cols});
  parallel_for(fresh, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float before = 0;
      uint64_t state = mix64(seed * 0x10001u + static_cast<uint64_t>(r));
      for (int64_t c = 0; c < cols; ++c) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const float value = static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
        before = 0.5f * before + 0.5f * value;
        host.as<float>()[r * cols + c] = before;
      }
    }
  });
  const Tensor some = upload_as(ex, host, dtype);
  Tensor all = ex.alloc(dtype, {rows, cols});
  for (int64_t r = 0; r < rows; r += fresh) {
    const int64_t n = std::min(fresh, rows - r);
    ex.copy(some.view().row_range(0, n), all.view().row_range(r, r + n));
  }
  return all;
}

void at_widths(const std::vector<int64_t>& widths, double seconds, double power,
               const std::function<void(int64_t)>& probe) {
  for (size_t i = 0; i < widths.size(); ++i) {
    const Stopwatch t;
    probe(widths[i]);
    if (i + 1 == widths.size()) return;
    const double larger = static_cast<double>(widths[i + 1]) / static_cast<double>(widths[i]);
    if (t.seconds() * std::pow(larger, power) > seconds) return;
  }
}

Rates measure_rates(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const RateOptions& o) {
  const Stopwatch timer;
  Rates r;
  const bool crossed = has(plan.needs, Needs::cross);
  const std::vector<int64_t> widths = widths_of(plan, ex.on_cuda());
  // A GPU leaves the disk and a processor to it meanwhile; on a CPU each would slow the other down.
  std::future<ByteRates> files =
      std::async(ex.on_cuda() ? std::launch::async : std::launch::deferred, [&] { return measure_files(c, plan, o); });
  if (o.chunks.windows > 0) {
    const auto ops = [&](const RateOptions& options) {
      std::vector<std::vector<double>> all;
      for (size_t kind = 0; kind < c.spec.kinds.size(); ++kind)
        all.push_back(op_seconds(ex, c, static_cast<int>(kind), options));
      return all;
    };
    r.op = ops(o);
    if (weighs_outputs(plan)) {
      RateOptions wide = o;
      wide.dtype = DType::f32;
      const RoughProducts rough(ex);
      r.op_f32 = ops(wide);
    }
    measure_sums(ex, widths, crossed, o, r);
  }
  measure_linears(ex, plan, widths, crossed, o, r);
  r.convert = convert_seconds(ex);
  r.bytes = files.get();
  measure_copies(ex, r.bytes);
  drop_kept_blocks();  // what was measured on must not stand beside the run's own memory
  r.seconds = timer.seconds();
  return r;
}

}  // namespace fewbit
