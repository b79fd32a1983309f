#include "src/run/bench/bench_compare.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "kernels/cpu/arithmetic.h"
#include "src/core/stopwatch.h"

namespace fewbit {
namespace {

// One of the two, ready to run.
struct Side {
  Checkpoint checkpoint;
  std::unique_ptr<Engine> engine{};
  std::vector<int32_t> prompt{};
  double load_s = 0;
  std::vector<double> ttft{}, ms{};

  void load(Exec& ex, const BenchOptions& o) {
    const Stopwatch start;
    const BenchShape& shape = o.shapes[0];
    engine = std::make_unique<Engine>(
        ex, checkpoint, EngineOptions{.load = o.load, .batch = shape.batch, .capacity = positions_of(shape, o)});
    ex.sync();
    load_s = start.seconds();
    prompt = random_prompt(checkpoint.spec, shape, o);
  }
  double first_token() {  // ms
    engine->reset();
    const Stopwatch start;
    engine->greedy_start(engine->prefill(prompt));
    engine->greedy_tokens();
    return 1e3 * start.seconds();
  }
  ComparedModel result(const BenchOptions& o) const {
    const BenchShape& shape = o.shapes[0];
    ComparedModel m;
    m.load_s = load_s;
    m.ttft_ms = spread_of(ttft);
    m.ms_per_token = spread_of(ms);
    m.bytes_per_token = engine->weight_bytes_per_token() +
                        engine->kv_bytes_per_token(shape.prompt_tokens + o.warmup + shape.tokens / 2);
    m.gb_per_s = static_cast<double>(m.bytes_per_token) / m.ms_per_token.mean / 1e6;
    m.launches = engine->step_launches();
    m.why_not_together = engine->why_not_together();
    m.kernels = engine->kernel_table();
    m.notes = engine->notes();
    return m;
  }
};

// The timed steps of one repetition; odd pairs run the second first.
void run_steps(Exec& ex, Side (&sides)[2], const BenchOptions& o) {
  for (int64_t i = 0; i < o.warmup; ++i)
    for (Side& side : sides) side.engine->greedy_step();
  ex.sync();
  std::vector<int> marks = {ex.mark()};
  for (int64_t i = 0; i < o.shapes[0].tokens; ++i)
    for (const size_t turn : {0, 1}) {
      sides[(static_cast<size_t>(i) + turn) % 2].engine->greedy_step();
      marks.push_back(ex.mark());
    }
  ex.sync();
  for (size_t n = 0; n + 1 < marks.size(); ++n)
    sides[(n / 2 + n) % 2].ms.push_back(ex.elapsed_ms(marks[n], marks[n + 1]));
}

// Sums of neighbours: A B and B A together, so that neither side always follows the other.
std::vector<double> in_twos(const std::vector<double>& v) {
  std::vector<double> sums;
  for (size_t i = 0; i + 1 < v.size(); i += 2) sums.push_back(v[i] + v[i + 1]);
  return sums;
}

}  // namespace

TimeRatio ratio_of(const std::vector<double>& first, const std::vector<double>& second) {
  FEWBIT_ASSERT(!first.empty() && first.size() == second.size());
  std::vector<double> logs;
  for (size_t i = 0; i < first.size(); ++i) logs.push_back(std::log(second[i] / first[i]));
  const auto n = static_cast<double>(logs.size());
  const Spread s = spread_of(std::move(logs));
  return {std::exp(s.mean), std::exp(s.mean) * s.std / std::sqrt(n)};
}

BenchComparison compare_speed(Exec& ex, const std::filesystem::path& a, const std::filesystem::path& b,
                              const BenchOptions& o, const BenchProgress& progress) {
  FEWBIT_ASSERT(o.shapes.size() == 1 && o.repetitions >= 1);
  if (o.shapes[0].tokens % 2 != 0)
    fail(ErrorKind::usage,
         fmt::format("{} steps cannot be shared out in the order A B B A; ask for an even number", o.shapes[0].tokens));
  const auto tell = [&](const char* phase, double f) {
    if (progress) progress(phase, f);
  };
  tell("loading", 0);
  Side sides[2] = {{.checkpoint = Checkpoint::open(a)}, {.checkpoint = Checkpoint::open(b)}};
  for (const Side& side : sides) check_shapes(side.checkpoint.spec, o);
  for (Side& side : sides) side.load(ex, o);
  tell("warming up", 0);
  for (Side& side : sides) {
    side.first_token();
    for (int64_t i = 0; i < o.warmup; ++i) side.engine->greedy_step();
  }
  for (int64_t i = 0; i < o.repetitions; ++i) {
    tell("measuring", static_cast<double>(i) / static_cast<double>(o.repetitions));
    for (const size_t turn : {0, 1}) {
      Side& side = sides[(static_cast<size_t>(i) + turn) % 2];
      side.ttft.push_back(side.first_token());
    }
    run_steps(ex, sides, o);
  }
  BenchComparison r;
  r.first = sides[0].result(o), r.second = sides[1].result(o);
  r.step = ratio_of(in_twos(sides[0].ms), in_twos(sides[1].ms));
  r.ttft = ratio_of(sides[0].ttft, sides[1].ttft);
  r.peak_bytes = ex.peak_bytes();
  for (Side& side : sides) side.engine.reset();  // the buffers of what follows stand beside no model
  r.memory = measure_memory(ex);
  for (ComparedModel* m : {&r.first, &r.second}) m->floor_share = m->gb_per_s / r.memory.read_gb_per_s;
  r.device = device_and_products(ex.device_name(), ex.on_cuda());
  return r;
}

}  // namespace fewbit
