// `runner bench --concurrency N`: requests that come and go, through the scheduler of `runner serve`.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/run/bench/traffic_bench.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/runner/speculation_text.h"
#include "tools/cli/table.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<TrafficShape> shapes_of(const BenchArgs& a) {
  std::vector<TrafficShape> shapes;
  for (const int64_t concurrency : a.traffic.concurrency)
    for (const std::string& prompt : a.prompt_tokens)
      for (const std::string& tokens : a.tokens)
        shapes.push_back(
            {.concurrency = concurrency, .prompt_tokens = lengths_from(prompt), .tokens = lengths_from(tokens)});
  return shapes;
}

TrafficOptions options_of(const BenchArgs& a) {
  const TrafficArgs& t = a.traffic;
  check_paged_type("runner bench --concurrency", kv_type_from(a.kv_cache));
  TrafficOptions o{.load = {.dtype = compute_dtype(a.dtype),
                            .kv_cache = kv_type_from(a.kv_cache),
                            .head = head_type_from(a.head),
                            .acts = acts_type_from(a.acts)},
                   .shapes = shapes_of(a),
                   .arrivals = {.rate = t.rate, .count = t.requests, .seed = a.options.seed},
                   .shared_tokens = t.shared_tokens,
                   .positions = t.scheduling.positions,
                   .budget = t.scheduling.budget,
                   .prefix_cache = !t.scheduling.no_prefix_cache,
                   .batch_invariant = t.scheduling.batch_invariant,
                   .speculate = batch_speculation_of(t.speculation),
                   .draft = t.speculation.draft};
  if (!t.slo.empty()) o.slo = slo_from(t.slo);
  if (!t.arrivals.empty()) o.arrivals.trace = read_arrivals(t.arrivals);
  return o;
}

// Lengths as they were asked for.
struct Asked {
  std::string prompt_tokens, tokens;
};
Asked asked_of(const BenchArgs& a, const TrafficRow& r) {
  if (!a.traffic.arrivals.empty()) return {"trace", "trace"};
  return {text_of(r.shape.prompt_tokens), text_of(r.shape.tokens)};
}

std::string arrivals_in_words(const BenchArgs& a) {
  const TrafficArgs& t = a.traffic;
  if (!t.arrivals.empty()) return "arrivals of " + t.arrivals;
  return t.rate > 0 ? fmt::format("{} requests a second, Poisson", t.rate)
                    : "a closed loop: each sequence sends its next request when the one before has ended";
}

std::string percentiles(const Spread& s) {
  return std::isnan(s.p50) ? "" : fmt::format("{:.1f} / {:.1f} / {:.1f}", s.p50, s.p90, s.p99);
}

std::string table_of(const BenchArgs& a, const TrafficResult& r, bool markdown) {
  std::vector<std::vector<std::string>> lines = {
      {"at once", "prompt", "tokens", "requests", "tokens/s", "TTFT ms p50 / p90 / p99", "ITL ms p50 / p90 / p99",
       "end to end ms p50 / p90 / p99", "goodput/s", "cache", "preempted", "prefix hits", "scheduling"}};
  for (const TrafficRow& row : r.rows) {
    const TrafficTimes& t = row.times;
    const Asked asked = asked_of(a, row);
    lines.push_back({fmt::format("{}", row.shape.concurrency), asked.prompt_tokens, asked.tokens,
                     fmt::format("{}", t.requests), fmt::format("{:.1f}", t.tokens_per_s), percentiles(t.ttft_ms),
                     percentiles(t.itl_ms), percentiles(t.e2e_ms),
                     a.traffic.slo.empty() ? "" : fmt::format("{:.3f} ({} kept)", t.goodput, t.within_slo),
                     fmt::format("{:.0f} %, peak {:.0f}", 100 * row.cache_mean, 100 * row.cache_peak),
                     fmt::format("{}", row.counts.preemptions), fmt::format("{:.1f} %", 100 * row.hit_rate()),
                     fmt::format("{:.2f} %", 100 * row.scheduling_share())});
  }
  return table(lines, markdown);
}

std::string summary(const BenchArgs& a, const std::string& model, const TrafficResult& r) {
  return fmt::format(
      "{} on {}, {} arithmetic, {} cache of {} pages of {} ({}, {} B a token), {}; loaded in {:.3f} s.\n{}; "
      "passes of up to {} "
      "rows{}{}.\n",
      model, r.device, a.dtype, a.kv_cache, r.pages, kPagePositions, human_bytes(r.cache_bytes),
      r.cache_bytes_per_token, head_and_acts(a.head, a.acts), r.load_s, arrivals_in_words(a),
      a.traffic.scheduling.budget, a.traffic.scheduling.no_prefix_cache ? ", no prefix cache" : "",
      a.traffic.slo.empty() ? "" : ", goodput under " + a.traffic.slo);
}

// The percentiles of every spread under their JSON keys.
constexpr std::pair<const char*, Spread TrafficTimes::*> kSpreads[] = {
    {"ttft_ms", &TrafficTimes::ttft_ms}, {"itl_ms", &TrafficTimes::itl_ms}, {"e2e_ms", &TrafficTimes::e2e_ms}};

// The figures of a row that are one number, under their JSON keys, in their order there.
std::vector<std::pair<const char*, double>> figures_of(const TrafficRow& r) {
  const TrafficTimes& t = r.times;
  const auto n = [](int64_t i) { return static_cast<double>(i); };
  return {{"requests", n(t.requests)},
          {"total_prompt_tokens", n(t.prompt_tokens)},
          {"total_tokens", n(t.tokens)},
          {"seconds", t.seconds},
          {"tokens_per_s", t.tokens_per_s},
          {"requests_per_s", t.requests_per_s},
          {"within_slo", n(t.within_slo)},
          {"goodput", t.goodput},
          {"cache_mean", r.cache_mean},
          {"cache_peak", r.cache_peak},
          {"preemptions", n(r.counts.preemptions)},
          {"prefix_hit_rate", r.hit_rate()},
          {"passes", n(r.counts.passes)},
          {"rows_per_pass", r.rows_per_pass()},
          {"drafted", n(r.counts.drafts.drafted)},
          {"accepted", n(r.counts.drafts.accepted_in_all())},
          {"planning_share", r.planning_share()},
          {"scheduling_share", r.scheduling_share()}};
}

std::string csv_of(const BenchArgs& a, const std::string& model, const TrafficResult& r) {
  std::string s = "model,device,dtype,kv_cache,head,acts,rate,concurrency,prompt_tokens,tokens";
  for (const auto& [key, figure] : figures_of(r.rows.front())) s += fmt::format(",{}", key);
  for (const auto& [key, spread] : kSpreads)
    for (const auto& [part, value] : values_of({})) s += fmt::format(",{}_{}", key, part);
  s += "\n";
  for (const TrafficRow& row : r.rows) {
    const Asked asked = asked_of(a, row);
    s += fmt::format("{},{},{},{},{},{},{},{},{},{}", quoted(model), quoted(r.device), a.dtype, a.kv_cache, a.head,
                     a.acts, a.traffic.rate, row.shape.concurrency, asked.prompt_tokens, asked.tokens);
    for (const auto& [key, figure] : figures_of(row)) s += fmt::format(",{}", figure);
    for (const auto& [key, spread] : kSpreads)
      for (const auto& [part, value] : values_of(row.times.*spread))
        s += std::isnan(value) ? "," : fmt::format(",{}", value);
    s += "\n";
  }
  return s;
}

Json json_of(const BenchArgs& a, const std::string& model, const TrafficResult& r, const TrafficOptions& o) {
  const Slo& slo = o.slo;
  const auto limit = [](double ms) { return ms < Slo::kNone ? Json(ms) : Json(); };
  Json j = {{"model", model},
            {"load_s", r.load_s},
            {"device", r.device},
            {"dtype", a.dtype},
            {"kv_cache", a.kv_cache},
            {"head", a.head},
            {"acts", a.acts},
            {"loop", a.traffic.rate > 0 || !a.traffic.arrivals.empty() ? "open" : "closed"},
            {"rate", a.traffic.rate > 0 ? Json(a.traffic.rate) : Json()},
            {"arrivals", a.traffic.arrivals.empty() ? Json() : Json(a.traffic.arrivals)},
            {"seed", a.options.seed},
            {"shared_tokens", a.traffic.shared_tokens},
            {"budget", a.traffic.scheduling.budget},
            {"prefix_cache", !a.traffic.scheduling.no_prefix_cache},
            {"batch_invariant", a.traffic.scheduling.batch_invariant},
            {"speculate", name_of(o.speculate.kind)},
            {"k", o.speculate.k},
            {"draft_model", o.draft.empty() ? Json() : Json(o.draft.string())},
            {"pages", r.pages},
            {"cache_bytes", r.cache_bytes},
            {"cache_bytes_per_token", r.cache_bytes_per_token},
            {"peak_bytes", r.peak_bytes},
            {"slo", {{"ttft_ms", limit(slo.ttft_ms)}, {"itl_ms", limit(slo.itl_ms)}, {"e2e_ms", limit(slo.e2e_ms)}}},
            {"rows", Json::array()},
            {"notes", r.notes}};
  for (const TrafficRow& row : r.rows) {
    const Asked asked = asked_of(a, row);
    Json one = {
        {"concurrency", row.shape.concurrency}, {"prompt_tokens", asked.prompt_tokens}, {"tokens", asked.tokens}};
    for (const auto& [key, figure] : figures_of(row))
      one[key] = figure == std::floor(figure) && figure < 1e15 ? Json(static_cast<int64_t>(figure)) : Json(figure);
    for (const auto& [key, spread] : kSpreads)
      for (const auto& [part, value] : values_of(row.times.*spread)) one[key][part] = value;
    if (row.variant_tokens_per_s > 0) one["tokens_per_s_not_invariant"] = row.variant_tokens_per_s;
    if (o.speculate.k > 0) one["speculation"] = Json::parse(cli::json_of(row.counts.drafts));
    j["rows"].push_back(std::move(one));
  }
  return j;
}

// Whether its tokens are the model's, before weights are read.
void check_draft_model(const std::string& draft, const std::filesystem::path& model) {
  const Checkpoint c = Checkpoint::open(model);
  draft_model(draft, c, Tokenizer::open(c.dir), 1);
}

}  // namespace

CLI::Option* add_traffic(CLI::App& bench, BenchArgs& a) {
  TrafficArgs& t = a.traffic;
  CLI::Option* traffic = add_list(bench, "--concurrency", t.concurrency,
                                  "Under load, as `runner serve` is: so many requests at one time, which come and go "
                                  "through its scheduler and paged cache. Prints TTFT, ITL and end-to-end latency, "
                                  "tokens/s, the cache's use, preemptions and prefix hits. --tokens and "
                                  "--prompt-tokens may be ranges then (uniform:64-512)",
                                  in_range(1, 1024))
                             ->default_str("");
  CLI::Option* rate =
      bench
          .add_option("--rate", t.rate,
                      "Requests a second, in a Poisson process: an open loop, in which those that find no place wait "
                      "and TTFT grows (left out: every sequence sends its next request when the last has ended)")
          ->check(number_in(1e-3, 1e6));
  CLI::Option* arrivals =
      bench.add_option("--arrivals", t.arrivals,
                       "FILE of requests, a line each: {\"arrival\": 0.5, \"prompt_tokens\": 100, \"tokens\": 20}");
  CLI::Option* requests =
      bench.add_option("--requests", t.requests, "Of a row (left out: four for each sequence, eight at least)")
          ->check(in_range(1, 1 << 20));
  CLI::Option* slo = bench
                         .add_option("--slo", t.slo,
                                     "Goodput counts the requests that keep ttft=200ms,itl=20ms,e2e=3s, or some of "
                                     "these; itl is a request's mean")
                         ->type_name("LIMITS");
  CLI::Option* shared =
      bench.add_option("--shared-tokens", t.shared_tokens, "With which every prompt begins, for the prefix cache")
          ->check(at_least(1));
  std::vector<CLI::Option*> with = {rate, arrivals, requests, slo, shared};
  for (CLI::Option* o : add_scheduling(bench, t.scheduling, "room for all of the largest --concurrency"))
    with.push_back(o);
  for (CLI::Option* o : add_speculation(bench, t.speculation)) with.push_back(o);
  for (CLI::Option* o : with) o->needs(traffic);
  for (const char* name : {"--batch", "--repetitions", "--trace", "--compare", "--ops", "--tp"})
    traffic->excludes(bench.get_option(name));
  arrivals->excludes(rate)->excludes(requests);
  for (const char* name : {"--tokens", "--prompt-tokens"}) arrivals->excludes(bench.get_option(name));
  return traffic;
}

void run_traffic(const BenchArgs& a) {
  const TrafficOptions o = options_of(a);
  const std::filesystem::path path = model_or_demo(a.common, a.model);
  if (!o.draft.empty()) check_draft_model(o.draft, path);
  const std::string model = path.string();
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const TrafficResult r = bench_traffic(ex, path, o, [&](const std::string& p, double f) { progress.update(p, f); });
  progress.update("done", 1);
  say(a.common, summary(a, model, r) + table_of(a, r, false));
  for (const TrafficRow& row : r.rows)
    if (row.counts.drafts.drafts > 0)
      say(a.common, fmt::format("speculation, {} at once: {}; {:.2f} tokens of a pass with a draft, predicted {:.2f}\n",
                                row.shape.concurrency, text_of(row.counts.drafts), row.counts.drafts.tokens_of_each(),
                                row.counts.drafts.predicted_tokens()));
  for (const TrafficRow& row : r.rows)
    if (row.variant_tokens_per_s > 0)
      say(a.common,
          fmt::format("batch-invariant, {} at once: {:.2f} of the {:.1f} tokens/s without\n", row.shape.concurrency,
                      row.times.tokens_per_s / row.variant_tokens_per_s, row.variant_tokens_per_s));
  for (const std::string& note : r.notes) say(a.common, "note: " + note + "\n");
  write_text(a.common, a.markdown, summary(a, model, r) + "\n" + table_of(a, r, true));
  write_text(a.common, a.csv, csv_of(a, model, r));
  write_json(a.common, json_of(a, model, r, o).dump(1) + "\n");
}

}  // namespace fewbit::cli
