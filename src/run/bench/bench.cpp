#include "src/run/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "kernels/cpu/arithmetic.h"
#include "kernels/exec/exec_measure.h"
#include "kernels/exec/read_all.h"
#include "kernels/products/gemm.h"
#include "src/core/half.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/stopwatch.h"
#include "src/core/text/with_error.h"
#include "src/model/work.h"
#include "src/run/plan/step_bytes.h"
#include "src/run/rank_sums.h"

namespace fewbit {
namespace {

// The median rate, in 1e9 a second, of seven runs of `work`, which is `amount`; one more goes before.
double rate_of(Exec& ex, double amount, const std::function<void()>& work) {
  std::vector<double> rates;
  work();
  for (int i = 0; i < 7; ++i) {
    const int begin = ex.mark();
    work();
    rates.push_back(amount / ex.elapsed_ms(begin, ex.mark()) / 1e6);
  }
  std::nth_element(rates.begin(), rates.begin() + 3, rates.end());
  return rates[3];
}

// Steps of the warm-up that run launch by launch where several ranks share the model, since a recorded step does not
// say how long its sums take.
constexpr int64_t kSumSteps = 4;

// The timed parts of one row, one entry a repetition; ms has one a step. all_reduce_s is of `summed` steps together.
struct Samples {
  std::vector<double> prefill, ttft, rate, ms;
  double all_reduce_s = 0;
  int64_t summed = 0;
};

int64_t sum_steps(const BenchOptions& o) { return o.load.ranks ? std::min(kSumSteps, o.warmup) : 0; }

// Adds what the sums of `steps` steps took between its making and its end, where they were timed: not those of recorded
// steps.
class SumTime {
 public:
  SumTime(const BenchOptions& o, Samples& s, int64_t steps) : sums_(o.load.ranks), samples_(s), steps_(steps) {
    if (sums_) seconds_ = sums_->seconds(), calls_ = sums_->sums();
  }
  ~SumTime() {
    if (!sums_ || sums_->sums() == calls_) return;
    samples_.all_reduce_s += sums_->seconds() - seconds_;
    samples_.summed += steps_;
  }
  SumTime(const SumTime&) = delete;
  SumTime& operator=(const SumTime&) = delete;

 private:
  const RankSums* sums_;
  Samples& samples_;
  int64_t steps_, calls_ = 0;
  double seconds_ = 0;
};

// One prompt and its steps on an engine that has no sequences.
void run_once(Exec& ex, Engine& engine, const BenchShape& shape, const BenchOptions& o,
              const std::vector<int32_t>& prompt, Samples& s, const std::function<void(double)>& progress) {
  const Stopwatch first;
  const ConstTensorView logits = engine.prefill(prompt);
  ex.sync();
  s.prefill.push_back(static_cast<double>(shape.batch * shape.prompt_tokens) / first.seconds());
  engine.greedy_start(logits);
  engine.greedy_tokens();
  s.ttft.push_back(1e3 * first.seconds());
  if (o.load.ranks) {
    const SumTime sums(o, s, sum_steps(o));
    engine.watch([](const PassStep&) {});
    for (int64_t i = 0; i < sum_steps(o); ++i) engine.greedy_step();
    engine.watch({});
  }
  for (int64_t i = sum_steps(o); i < o.warmup; ++i) engine.greedy_step();
  ex.sync();
  const SumTime sums(o, s, shape.tokens);
  std::vector<int> marks = {ex.mark()};
  const Stopwatch start;
  for (int64_t i = 0; i < shape.tokens; ++i) {
    engine.greedy_step();
    marks.push_back(ex.mark());
    if (!ex.on_cuda()) progress(static_cast<double>(i + 1) / static_cast<double>(shape.tokens));
  }
  ex.sync();
  s.rate.push_back(static_cast<double>(shape.tokens * shape.batch) / start.seconds());
  engine.greedy_tokens();  // an error where another rank fell silent on the way
  for (size_t i = 1; i < marks.size(); ++i) s.ms.push_back(ex.elapsed_ms(marks[i - 1], marks[i]));
}

// One row on an engine of its batch and capacity; the share of the floor is added when that is known.
BenchRow run_row(Exec& ex, Engine& engine, const BenchShape& shape, const BenchOptions& o,
                 const std::function<void(const char* phase, double)>& tell) {
  const std::vector<int32_t> prompt = random_prompt(engine.spec(), shape, o);
  tell("warming up", 0);
  engine.greedy_start(engine.prefill(prompt));
  for (int64_t i = 0; i < o.warmup; ++i) engine.greedy_step();
  engine.greedy_tokens();
  tell("measuring", 0);
  Samples s;
  for (int64_t i = 0; i < o.repetitions; ++i) {
    engine.reset();
    run_once(ex, engine, shape, o, prompt, s,
             [&](double f) { tell("measuring", (static_cast<double>(i) + f) / static_cast<double>(o.repetitions)); });
  }
  BenchRow r{.shape = shape};
  if (s.summed > 0) r.all_reduce_ms = 1e3 * s.all_reduce_s / static_cast<double>(s.summed);
  r.prefill_tokens_per_s = spread_of(std::move(s.prefill));
  r.ttft_ms = spread_of(std::move(s.ttft));
  r.tokens_per_s = spread_of(std::move(s.rate));
  r.ms_per_token = spread_of(std::move(s.ms));
  const int64_t context = shape.prompt_tokens + o.warmup + shape.tokens / 2;
  r.bytes_per_token = engine.weight_bytes_per_token() + engine.kv_bytes_per_token(context);
  r.gb_per_s = static_cast<double>(r.bytes_per_token) / r.ms_per_token.mean / 1e6;
  r.peak_bytes = ex.peak_bytes();
  r.launches = engine.step_launches();
  r.why_not_together = engine.why_not_together();
  const auto per_second = [](double flop, double ms) { return flop / ms / 1e9; };
  r.prefill_flop = pass_flop(engine.spec(), shape.batch, 0, shape.prompt_tokens);
  r.prefill_bytes = static_cast<double>(engine.prefill_bytes(shape.prompt_tokens));
  r.prefill_tflop_per_s = per_second(
      r.prefill_flop, 1e3 * static_cast<double>(shape.batch * shape.prompt_tokens) / r.prefill_tokens_per_s.mean);
  r.flop_per_token = pass_flop(engine.spec(), shape.batch, context - 1, 1);
  r.tflop_per_s = per_second(r.flop_per_token, r.ms_per_token.mean);
  return r;
}

}  // namespace

Spread spread_of(std::vector<double> v) {
  FEWBIT_ASSERT(!v.empty());
  Spread s;
  const auto n = static_cast<double>(v.size());
  s.mean = std::accumulate(v.begin(), v.end(), 0.0) / n;
  double squares = 0;
  for (const double x : v) squares += (x - s.mean) * (x - s.mean);
  s.std = v.size() > 1 ? std::sqrt(squares / (n - 1)) : kNoError;
  std::sort(v.begin(), v.end());
  const auto rank = [&](double p) { return v[static_cast<size_t>(std::max(0.0, std::ceil(p * n) - 1))]; };
  s.p50 = rank(0.50), s.p90 = rank(0.90), s.p95 = rank(0.95), s.p99 = rank(0.99);
  return s;
}

MemoryRates measure_memory(Exec& ex) {
  MemoryRates m;
  // 4 GiB where the model leaves room.
  const int64_t fits = ex.on_cuda() ? std::max<int64_t>(ex.free_bytes() / 2, int64_t{1} << 26) : int64_t{512} << 20;
  const int64_t bytes = std::min<int64_t>(int64_t{4} << 30, fits) / 256 * 256;
  {
    const Tensor data = ex.alloc_zeros(DType::u8, {bytes}), mixed = ex.alloc(DType::i32, {1});
    m.read_gb_per_s = rate_of(ex, static_cast<double>(bytes), [&] { read_all(ex, data, mixed); });
  }
  const int64_t half = std::min(bytes / 4, int64_t{1} << 30);
  const Tensor from = ex.alloc_zeros(DType::u8, {half}), to = ex.alloc_zeros(DType::u8, {half});
  m.copy_gb_per_s = rate_of(ex, static_cast<double>(2 * half), [&] { ex.copy(from, to); });
  return m;
}

double measure_products(Exec& ex, DType dtype) {
  const int64_t n = ex.on_cuda() ? 8192 : 1024;
  Tensor host = Tensor::host(dtype, {n, n});
  const Rng rng(0, "product rate");
  parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * n; i < end * n; ++i) {
      const auto x = static_cast<float>(rng.uniform_at(static_cast<uint64_t>(i)) - 0.5);
      if (dtype == DType::bf16)
        host.as<bf16>()[i] = x;
      else
        host.as<float>()[i] = x;
    }
  });
  const Tensor x = ex.to_device(host), w = ex.to_device(host), y = ex.alloc(dtype, {n, n});
  return rate_of(ex, 2 * std::pow(static_cast<double>(n), 3), [&] { gemm(ex, x, w, {}, y); }) / 1e3;
}

int64_t positions_of(const BenchShape& s, const BenchOptions& o) { return s.prompt_tokens + s.tokens + o.warmup + 1; }

void check_shapes(const ModelSpec& spec, const BenchOptions& o) {
  for (const BenchShape& s : o.shapes)
    if (positions_of(s, o) > spec.max_positions)
      fail(
          ErrorKind::usage,
          fmt::format("{} prompt tokens, {} warm-up steps and {} tokens exceed the model's {} positions; ask for fewer",
                      s.prompt_tokens, o.warmup, s.tokens, spec.max_positions));
}

std::vector<int32_t> random_prompt(const ModelSpec& spec, const BenchShape& shape, const BenchOptions& o) {
  Rng rng(o.seed, "bench prompt");
  std::vector<int32_t> ids(static_cast<size_t>(shape.batch * shape.prompt_tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(spec.vocab)));
  return ids;
}

BenchResult bench(Exec& ex, const std::filesystem::path& model, const BenchOptions& o, const BenchProgress& progress) {
  FEWBIT_ASSERT(!o.shapes.empty() && o.repetitions >= 1);
  const auto tell = [&](const std::string& phase, double f) {
    if (progress) progress(phase, f);
  };
  tell("loading", 0);
  const Stopwatch loading;
  const Checkpoint c = Checkpoint::open(model);
  check_shapes(c.spec, o);
  check_cache_type(c.spec, o.load.kv_cache);
  BenchResult r;
  r.cache_bytes_per_token = position_bytes(c.spec, o.load.kv_cache, o.load.dtype);
  auto held = std::make_unique<Engine>(
      ex, c, EngineOptions{.load = o.load, .batch = o.shapes[0].batch, .capacity = positions_of(o.shapes[0], o)});
  Engine& engine = *held;
  ex.sync();
  r.load_s = loading.seconds();
  for (size_t i = 0; i < o.shapes.size(); ++i) {
    if (i > 0) {
      engine.resize(o.shapes[i].batch, positions_of(o.shapes[i], o));
      reset_peak(ex);
    }
    r.rows.push_back(run_row(ex, engine, o.shapes[i], o, [&](const char* phase, double f) {
      tell(o.shapes.size() == 1 ? phase : fmt::format("{} row {} of {}", phase, i + 1, o.shapes.size()), f);
    }));
    r.peak_bytes = std::max(r.peak_bytes, r.rows.back().peak_bytes);
  }
  if (o.trace) {
    engine.resize(o.shapes[0].batch, positions_of(o.shapes[0], o));
    r.trace = trace_passes(ex, engine, random_prompt(c.spec, o.shapes[0], o));
  }
  r.kernels = engine.kernel_table();
  r.notes = engine.notes();
  held.reset();  // the buffers of what follows are none of the model's memory, nor does it stand beside them
  r.memory = measure_memory(ex);
  r.product_tflop_per_s = measure_products(ex, o.load.dtype);
  for (BenchRow& row : r.rows) row.floor_share = row.gb_per_s / r.memory.read_gb_per_s;
  r.device = device_and_products(ex.device_name(), ex.on_cuda());
  return r;
}

}  // namespace fewbit
