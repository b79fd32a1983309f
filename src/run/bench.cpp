#include "src/run/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "src/core/rng.h"

namespace fewbit {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Copies a buffer larger than any cache a few times; the median of the rates, read and write counted.
double copy_rate(Exec& ex) {
  const int64_t bytes = ex.on_cuda() ? int64_t{1} << 30 : int64_t{128} << 20;
  const Tensor from = ex.alloc_zeros(DType::u8, {bytes}), to = ex.alloc_zeros(DType::u8, {bytes});
  std::vector<double> rates;
  ex.copy(from, to);
  for (int i = 0; i < 7; ++i) {
    const int begin = ex.mark();
    ex.copy(from, to);
    rates.push_back(2.0 * static_cast<double>(bytes) / ex.elapsed_ms(begin, ex.mark()) / 1e6);
  }
  std::nth_element(rates.begin(), rates.begin() + 3, rates.end());
  return rates[3];
}

std::vector<int32_t> random_prompt(const ModelSpec& spec, const BenchOptions& o) {
  Rng rng(o.seed, "bench prompt");
  std::vector<int32_t> ids(static_cast<size_t>(o.batch * o.prompt_tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(spec.vocab)));
  return ids;
}

}  // namespace

Spread spread_of(std::vector<double> v) {
  FEWBIT_ASSERT(!v.empty());
  Spread s;
  const auto n = static_cast<double>(v.size());
  s.mean = std::accumulate(v.begin(), v.end(), 0.0) / n;
  double squares = 0;
  for (const double x : v) squares += (x - s.mean) * (x - s.mean);
  s.std = v.size() > 1 ? std::sqrt(squares / (n - 1)) : 0;
  std::sort(v.begin(), v.end());
  const auto rank = [&](double p) { return v[static_cast<size_t>(std::max(0.0, std::ceil(p * n) - 1))]; };
  s.p50 = rank(0.50), s.p90 = rank(0.90), s.p95 = rank(0.95), s.p99 = rank(0.99);
  return s;
}

BenchResult bench(Exec& ex, const std::filesystem::path& model, const BenchOptions& o,
                  const std::function<void(const std::string&, double)>& progress) {
  const auto tell = [&](const char* phase, double f) {
    if (progress) progress(phase, f);
  };
  tell("loading", 0);
  const Clock::time_point loading = Clock::now();
  const Checkpoint c = Checkpoint::open(model);
  const int64_t length = o.prompt_tokens + o.tokens + o.warmup + 1;
  if (length > c.spec.max_positions)
    fail(
        ErrorKind::usage,
        fmt::format(
            "{} prompt tokens, {} warm-up steps and {} tokens exceed the model's {} positions; ask for fewer",
            o.prompt_tokens, o.warmup, o.tokens, c.spec.max_positions));
  Engine engine(ex, c, {.load = o.load, .batch = o.batch, .capacity = length});
  ex.sync();
  BenchResult r;
  r.load_s = seconds_since(loading);
  const std::vector<int32_t> prompt = random_prompt(c.spec, o);

  tell("warming up", 0);
  engine.greedy_start(engine.prefill(prompt));
  for (int64_t i = 0; i < o.warmup; ++i) engine.greedy_step();
  engine.greedy_tokens();
  engine.reset();

  tell("measuring", 0);
  const Clock::time_point first = Clock::now();
  const ConstTensorView logits = engine.prefill(prompt);
  ex.sync();
  r.prefill_tokens_per_s = static_cast<double>(o.batch * o.prompt_tokens) / seconds_since(first);
  engine.greedy_start(logits);
  engine.greedy_tokens();
  r.ttft_ms = 1e3 * seconds_since(first);
  for (int64_t i = 0; i < o.warmup; ++i) engine.greedy_step();
  ex.sync();
  std::vector<int> marks = {ex.mark()};
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < o.tokens; ++i) {
    engine.greedy_step();
    marks.push_back(ex.mark());
    if (!ex.on_cuda()) tell("measuring", static_cast<double>(i + 1) / static_cast<double>(o.tokens));
  }
  ex.sync();
  const double wall = seconds_since(start);
  std::vector<double> ms;
  for (size_t i = 1; i < marks.size(); ++i) ms.push_back(ex.elapsed_ms(marks[i - 1], marks[i]));
  r.ms_per_token = spread_of(std::move(ms));
  r.tokens_per_s = static_cast<double>(o.tokens * o.batch) / wall;
  const int64_t context = o.prompt_tokens + o.warmup + o.tokens / 2;
  r.bytes_per_token = engine.weight_bytes_per_token() + engine.kv_bytes_per_token(context);
  r.gb_per_s = static_cast<double>(r.bytes_per_token) / r.ms_per_token.mean / 1e6;
  r.peak_bytes = ex.peak_bytes();  // before the copy's own buffers
  r.copy_gb_per_s = copy_rate(ex);
  r.floor_share = r.gb_per_s / r.copy_gb_per_s;
  r.batch = o.batch;
  r.prompt_tokens = o.prompt_tokens;
  r.tokens = o.tokens;
  r.device = ex.device_name();
  r.kernels = engine.kernel_table();
  r.notes = engine.notes();
  return r;
}

}  // namespace fewbit
