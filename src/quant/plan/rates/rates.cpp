#include "src/quant/plan/rates/rates.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <future>
#include <set>

#include "kernels/exec/rough_products.h"
#include "kernels/statistics/column_stats.h"
#include "src/core/host_blocks.h"
#include "src/core/rng.h"
#include "src/quant/plan/rates/rate_probe.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

// A GPU's clock is steadier.
double shortest(const Exec& ex) { return ex.on_cuda() ? kShortest / 2 : kShortest; }
// Numbers that probes are made of. A prime, so that rows of any width begin at places of their own: sums over rows
// that are copies of each other would be singular.
constexpr int64_t kNumbers = 1'048'573;
constexpr int kConsumers = 3;              // linears behind an absorber, as q, k and v
constexpr int64_t kTransformRows = 128;    // of each: as many as searches judge
constexpr int64_t kTransformTokens = 512;  // of its statistics; its sample has four times as many

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

// A norm with linears behind it, rewritten by the transform: seconds for one of the linears.
double transform_seconds(Bench& bench, const Transform& t, const QuantPlan& plan, const PlannedLinear& like,
                         int64_t n) {
  Exec& ex = bench.ex;
  std::vector<BlockOp> ops = {Norm{Slot::x, Slot::h, NormKind::rms, "norm", n, 1e-6f}, Linears{Slot::h, {}}};
  TransformJob job{.ops = &ops, .migration = plan.migration};
  BlockF32 block;
  constexpr Slot kOut[kConsumers] = {Slot::q, Slot::k, Slot::v};
  for (int i = 0; i < kConsumers; ++i) {
    const std::string name = std::string("linear") += static_cast<char>('0' + i);
    std::get<Linears>(ops[1]).items.push_back({name, kOut[i], kTransformRows, n});
    job.targets[name] = {like.recipe.spec, like.recipe.effort, like.recipe.method};
    block.weights[name + ".weight"] = bench.values(DType::f32, kTransformRows, n, 8 + i);
  }
  block.vectors["norm.weight"].value.assign(static_cast<size_t>(n), 1.f);
  job.absorbers = usable_absorbers(ops, job.targets);
  if (job.absorbers.empty()) return 0;
  ActivationStats& s = job.stats[job.absorbers[0].name];
  s.input = sums_of(bench, n, false, DType::f32).stats;
  s.absmax = ex.alloc_zeros(DType::f32, {n});
  s.abssum = ex.alloc_zeros(DType::f64, {n});
  s.sample = bench.values(DType::f32, 4 * kTransformTokens, n, 6);
  column_stats(ex, s.sample.view().row_range(0, kTransformTokens), {}, s.absmax, s.abssum);
  if (ex.on_cuda()) t.apply(ex, job, block);  // loads its kernels
  ex.sync();
  const Stopwatch timer;
  t.apply(ex, job, block);
  ex.sync();
  return timer.seconds() / kConsumers;
}

void measure_sums(Bench& bench, const std::vector<int64_t>& widths, bool crossed, const RateOptions& o, Rates& r) {
  Points gram, cross;
  at_widths(widths, o.budget / 6, 2, [&](int64_t n) {
    const Sums s = sums_of(bench, n, crossed, o.dtype);
    gram.emplace_back(n, s.gram);
    cross.emplace_back(n, s.cross);
  });
  r.gram = law_of(1, gram);
  r.cross = law_of(1, cross);
}

void measure_transforms(Bench& bench, const QuantPlan& plan, const std::vector<int64_t>& widths, const RateOptions& o,
                        Rates& r) {
  const auto like = std::find_if(plan.linears.begin(), plan.linears.end(),
                                 [](const PlannedLinear& p) { return !p.keep && !p.lossless && p.recipe.method; });
  if (o.chunks.windows == 0 || like == plan.linears.end()) return;
  for (const Transform* t : plan.transforms) {
    Points points;
    at_widths(widths, o.budget / 2, 2,
              [&](int64_t n) { points.emplace_back(n, transform_seconds(bench, *t, plan, *like, n)); });
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

double Bench::seconds_of(const std::function<void()>& work) {
  // The first call says how often, and does not count: a mean that ends with a call that was held up is too long.
  ex.sync();
  const Stopwatch once;
  work();
  if (!timed) return 0;
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

// [kNumbers] of them.
const Tensor& Bench::numbers(DType dtype) {
  const auto [at, fresh] = numbers_.try_emplace(dtype);
  if (!fresh) return at->second;
  const Tensor host = Tensor::host(DType::f32, {kNumbers});
  float before = 0;
  uint64_t state = mix64(1);
  for (int64_t i = 0; i < kNumbers; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    before = 0.5f * before + 0.5f * (static_cast<float>(state >> 40) * 0x1p-24f - 0.5f);
    host.as<float>()[i] = before;
  }
  return at->second = upload_as(ex, host, dtype);
}

Tensor Bench::values(DType dtype, int64_t rows, int64_t cols, int64_t seed) {
  constexpr int64_t kApart = 104729;  // between the places of two seeds
  const ConstTensorView from = numbers(dtype);
  Tensor all = ex.alloc(dtype, {rows, cols});
  const TensorView to = all.view().reshaped({rows * cols});
  int64_t begin = seed * kApart % kNumbers;
  for (int64_t done = 0; done < rows * cols;) {
    const int64_t n = std::min(kNumbers - begin, rows * cols - done);
    ex.copy(from.row_range(begin, begin + n), to.row_range(done, done + n));
    done += n;
    begin = 0;
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
  Bench bench(ex, true);
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
        all.push_back(op_seconds(bench, c, static_cast<int>(kind), options));
      return all;
    };
    r.op = ops(o);
    if (weighs_outputs(plan)) {
      RateOptions wide = o;
      wide.dtype = DType::f32;
      const RoughProducts rough(ex);
      r.op_f32 = ops(wide);
    }
    measure_sums(bench, widths, crossed, o, r);
  }
  measure_linears(bench, plan, widths, crossed, o, r);
  measure_transforms(bench, plan, widths, o, r);
  r.convert = convert_seconds(bench);
  r.bytes = files.get();
  measure_copies(bench, r.bytes);
  drop_kept_blocks();  // what was measured on must not stand beside the run's own memory
  r.seconds = timer.seconds();
  return r;
}

}  // namespace fewbit
