// `runner bench [MODEL]`: one shape, or lists of prompt sizes, steps and batch sizes, of which every combination is a
// row.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "tools/cli/results.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/table.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::vector<BenchShape> shapes_of(const BenchArgs& a) {
  std::vector<BenchShape> shapes;
  for (const int64_t batch : a.batch)
    for (const std::string& prompt : a.prompt_tokens)
      for (const std::string& tokens : a.tokens)
        shapes.push_back({.batch = batch,
                          .prompt_tokens = one_length(prompt, "--prompt-tokens"),
                          .tokens = one_length(tokens, "--tokens")});
  return shapes;
}

// Tables: for people a cell has few digits and, where the timed part ran several times, its standard deviation.
const std::vector<const char*> kHeadings = {"batch",      "prompt", "tokens", "prefill t/s", "TTFT ms",
                                            "decode t/s", "ITL ms", "p50",    "p90",         "p95",
                                            "p99",        "GB/s",   "floor",  "peak",        "layers"};
std::vector<std::string> cells_of(const BenchRow& r, bool repeated) {
  const auto spread = [&](const Spread& s, int digits, bool with_std) {
    return with_std ? with_error(s.mean, s.std, digits) : fmt::format("{:.{}f}", s.mean, digits);
  };
  const auto ms = [](double v) { return fmt::format("{:.3f}", v); };
  const Spread& itl = r.ms_per_token;
  return {fmt::format("{}", r.shape.batch),
          fmt::format("{}", r.shape.prompt_tokens),
          fmt::format("{}", r.shape.tokens),
          spread(r.prefill_tokens_per_s, 1, repeated),
          spread(r.ttft_ms, 2, repeated),
          spread(r.tokens_per_s, 1, repeated),
          spread(itl, 3, true),
          ms(itl.p50),
          ms(itl.p90),
          ms(itl.p95),
          ms(itl.p99),
          fmt::format("{:.1f}", r.gb_per_s),
          fmt::format("{:.1f} %", 100 * r.floor_share),
          human_bytes(r.peak_bytes),
          name_of(r.launches)};
}

std::string table_of(const BenchResult& r, bool repeated, bool markdown) {
  std::vector<std::vector<std::string>> lines = {{kHeadings.begin(), kHeadings.end()}};
  for (const BenchRow& row : r.rows) lines.push_back(cells_of(row, repeated));
  return table(lines, markdown);
}

std::string markdown_of(const BenchArgs& a, const std::string& model, const BenchResult& r) {
  return fmt::format(
      "{} on {}, {} arithmetic, {} cache of {} B a token, {}, {} repetitions; loaded in {:.3f} s; memory reads at "
      "{:.0f} GB/s "
      "(the floor), "
      "copies at {:.0f} GB/s.\n\n{}",
      model, r.device, a.dtype, a.kv_cache, r.cache_bytes_per_token, head_and_acts(a.head, a.acts),
      a.options.repetitions, r.load_s, r.memory.read_gb_per_s, r.memory.copy_gb_per_s,
      table_of(r, a.options.repetitions > 1, true));
}

// The names are the JSON keys, joined by underscores where they are nested.
std::string csv_of(const BenchArgs& a, const std::string& model, const BenchResult& r) {
  std::string s =
      "model,device,dtype,kv_cache,head,acts,batch,prompt_tokens,tokens,repetitions,load_s,prefill_tokens_per_s,"
      "prefill_tokens_per_s_std,ttft_ms,ttft_ms_std,tokens_per_s,tokens_per_s_std,ms_per_token_mean,ms_per_token_std,"
      "ms_per_token_p50,ms_per_token_p90,ms_per_token_p95,ms_per_token_p99,bytes_per_token,gb_per_s,copy_gb_per_s,"
      "read_gb_per_s,floor_share,peak_bytes,one_launch,steps,tp,all_reduce_ms\n";
  for (const BenchRow& row : r.rows) {
    s += fmt::format("{},{},{},{},{},{},{},{},{},{},{}", quoted(model), quoted(r.device), a.dtype, a.kv_cache, a.head,
                     a.acts, row.shape.batch, row.shape.prompt_tokens, row.shape.tokens, a.options.repetitions,
                     r.load_s);
    for (const Spread* v : {&row.prefill_tokens_per_s, &row.ttft_ms, &row.tokens_per_s, &row.ms_per_token})
      s += fmt::format(",{},{}", v->mean, std::isnan(v->std) ? "" : fmt::format("{}", v->std));
    const Spread& ms = row.ms_per_token;
    s +=
        fmt::format(",{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", ms.p50, ms.p90, ms.p95, ms.p99, row.bytes_per_token,
                    row.gb_per_s, r.memory.copy_gb_per_s, r.memory.read_gb_per_s, row.floor_share, row.peak_bytes,
                    row.launches == StepLaunches::together, name_of(row.launches), a.tp, row.all_reduce_ms);
  }
  return s;
}

std::string lines_of(const BenchArgs& a, const std::string& model, const BenchResult& r) {
  const BenchRow& row = r.rows.front();
  const Spread& ms = row.ms_per_token;
  return fmt::format(
      "{} on {}: batch {}, {} prompt tokens, {} tokens, {} cache of {} B a token, {}\n"
      "  load               {:.3f} s\n"
      "  prefill            {:.1f} tokens/s, {:.3g} TFLOP/s = {:.1f} % of the measured rate of products ({:.3g})\n"
      "  first token        {:.2f} ms\n"
      "  per token          {} ms   p50 {:.3f}  p90 {:.3f}  p95 {:.3f}  p99 {:.3f}\n"
      "  decode             {:.1f} tokens/s\n"
      "  memory traffic     {} a step, {:.1f} GB/s = {:.1f} % of the measured read rate ({:.0f} GB/s; copies {:.0f})\n"
      "  peak memory        {}\n"
      "  linears            {}\n"
      "  steps              {}\n{}",
      model, r.device, row.shape.batch, row.shape.prompt_tokens, row.shape.tokens, a.kv_cache, r.cache_bytes_per_token,
      head_and_acts(a.head, a.acts), r.load_s, row.prefill_tokens_per_s.mean, row.prefill_tflop_per_s,
      100 * row.prefill_tflop_per_s / r.product_tflop_per_s, r.product_tflop_per_s, row.ttft_ms.mean,
      with_error(ms.mean, ms.std, 3), ms.p50, ms.p90, ms.p95, ms.p99, row.tokens_per_s.mean,
      human_bytes(row.bytes_per_token), row.gb_per_s, 100 * row.floor_share, r.memory.read_gb_per_s,
      r.memory.copy_gb_per_s, human_bytes(r.peak_bytes), join(r.kernels, ", "),
      steps_of(row.launches, row.why_not_together),
      a.tp == 1 ? ""
      : row.launches == StepLaunches::op_by_op
          ? fmt::format("  ranks              {}; all-reduces {:.3f} ms a step = {:.1f} % of it\n", a.tp,
                        row.all_reduce_ms, 100 * row.all_reduce_ms / ms.mean)
          : fmt::format("  ranks              {}; sums are made in the launches\n", a.tp));
}

// Each reason once, with the batch sizes that it holds for.
std::string reasons_of(const BenchResult& r) {
  std::map<std::string, std::set<int64_t>> batches;
  for (const BenchRow& row : r.rows)
    if (row.launches != StepLaunches::together)
      batches[steps_of(row.launches, row.why_not_together)].insert(row.shape.batch);
  std::string s;
  for (const auto& [steps, at] : batches) s += fmt::format("batch {}: {}\n", fmt::join(at, ", "), steps);
  return s;
}

Json json_of(const Spread& s) {
  Json j;
  for (const auto& [key, value] : values_of(s)) j[key] = value;
  return j;
}

// What `evaluate report` draws: the work of a prompt and of a step, and how fast it was done.
Json roofline_of(const BenchRow& r) {
  return {{"prefill", {{"flop", r.prefill_flop}, {"bytes", r.prefill_bytes}, {"tflop_per_s", r.prefill_tflop_per_s}}},
          {"decode", {{"flop", r.flop_per_token}, {"bytes", r.bytes_per_token}, {"tflop_per_s", r.tflop_per_s}}}};
}

Json json_of(const BenchRow& r) {
  return {{"batch", r.shape.batch},
          {"prompt_tokens", r.shape.prompt_tokens},
          {"tokens", r.shape.tokens},
          {"prefill_tokens_per_s", r.prefill_tokens_per_s.mean},
          {"ttft_ms", r.ttft_ms.mean},
          {"ms_per_token", json_of(r.ms_per_token)},
          {"tokens_per_s", r.tokens_per_s.mean},
          {"std",
           {{"prefill_tokens_per_s", r.prefill_tokens_per_s.std},
            {"ttft_ms", r.ttft_ms.std},
            {"tokens_per_s", r.tokens_per_s.std}}},
          {"bytes_per_token", r.bytes_per_token},
          {"gb_per_s", r.gb_per_s},
          {"floor_share", r.floor_share},
          {"roofline", roofline_of(r)},
          {"peak_bytes", r.peak_bytes},
          {"steps", name_of(r.launches)},
          {"one_launch", r.launches == StepLaunches::together},
          {"why_op_by_op", why_op_by_op(r)},
          {"all_reduce_ms", r.all_reduce_ms}};
}

Json json_of(const BenchArgs& a, const std::string& model, const BenchResult& r, bool rows) {
  const BenchRow& first = r.rows.front();
  Json j = {{"model", model},
            {"load_s", r.load_s},
            {"prefill_tokens_per_s", first.prefill_tokens_per_s.mean},
            {"ttft_ms", first.ttft_ms.mean},
            {"ms_per_token", json_of(first.ms_per_token)},
            {"tokens_per_s", first.tokens_per_s.mean},
            {"bytes_per_token", first.bytes_per_token},
            {"gb_per_s", first.gb_per_s},
            {"copy_gb_per_s", r.memory.copy_gb_per_s},
            {"read_gb_per_s", r.memory.read_gb_per_s},
            {"floor_share", first.floor_share},
            {"product_tflop_per_s", r.product_tflop_per_s},
            {"roofline", roofline_of(first)},
            {"peak_bytes", r.peak_bytes},
            {"device", r.device},
            {"dtype", a.dtype},
            {"kv_cache", a.kv_cache},
            {"cache_bytes_per_token", r.cache_bytes_per_token},
            {"head", a.head},
            {"acts", a.acts},
            {"batch", first.shape.batch},
            {"prompt_tokens", first.shape.prompt_tokens},
            {"tokens", first.shape.tokens},
            {"warmup", a.options.warmup},
            {"steps", name_of(first.launches)},
            {"one_launch", first.launches == StepLaunches::together},
            {"why_op_by_op", why_op_by_op(first)},
            {"tp", a.tp},
            {"all_reduce_ms", first.all_reduce_ms},
            {"kernels", r.kernels},
            {"notes", r.notes}};
  if (!rows) return j;
  j["repetitions"] = a.options.repetitions;
  j["rows"] = Json::array();
  for (const BenchRow& row : r.rows) j["rows"].push_back(json_of(row));
  return j;
}

void run_bench(BenchArgs& a, RankSums* ranks) {
  a.options.load = {
      .dtype = compute_dtype(a.dtype),
      .kv_cache = kv_type_from(a.kv_cache),
      .head = head_type_from(a.head),
      .acts = acts_type_from(a.acts),
      .ranks = ranks,
  };
  a.options.shapes = shapes_of(a);
  if (!a.compare.empty()) {
    if (a.options.shapes.size() > 1)
      fail(ErrorKind::usage, "--compare takes one shape: give --batch, --prompt-tokens and --tokens one value each");
    return run_comparison(a);
  }
  a.options.trace = !a.trace.empty();
  const fs::path path = model_or_demo(a.common, a.model);
  const std::string model = path.string();
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const BenchResult r = bench(ex, path, a.options, [&](const std::string& p, double f) { progress.update(p, f); });
  progress.update("done", 1);
  const bool rows = r.rows.size() > 1 || a.options.repetitions > 1;
  if (rows)
    say(a.common,
        fmt::format("{} on {}, {} cache of {} B a token, {}: loaded in {:.3f} s; the floor is the measured read "
                    "rate, {:.0f} GB/s\n"
                    "{}linears: {}\n{}",
                    model, r.device, a.kv_cache, r.cache_bytes_per_token, head_and_acts(a.head, a.acts), r.load_s,
                    r.memory.read_gb_per_s, table_of(r, a.options.repetitions > 1, false), join(r.kernels, ", "),
                    reasons_of(r)));
  else
    say(a.common, lines_of(a, model, r));
  for (const std::string& note : r.notes) say(a.common, "note: " + note + "\n");
  write_text(a.common, a.markdown, markdown_of(a, model, r));
  write_text(a.common, a.csv, csv_of(a, model, r));
  if (a.options.trace) write_text(a.common, a.trace, trace_json(model, r.device, r.trace));
  write_json(a.common, json_of(a, model, r, rows).dump(1) + "\n");
}

}  // namespace

std::string steps_of(StepLaunches launches, const std::string& why_not_together) {
  if (launches == StepLaunches::together) return "all layers in one launch";
  const char* how = launches == StepLaunches::op_by_op ? "op by op" : "one launch a layer, attention apart";
  return fmt::format("{}: {}", how, why_not_together);
}

std::vector<std::pair<const char*, double>> values_of(const Spread& s) {
  return {{"mean", s.mean}, {"std", s.std}, {"p50", s.p50}, {"p90", s.p90}, {"p95", s.p95}, {"p99", s.p99}};
}

void add_bench_command(CLI::App& app) {
  const auto b = std::make_shared<BenchArgs>();
  CLI::App* bench =
      app.add_subcommand("bench", "Load time, prefill rate, time to first token, latency per token, GB/s");
  auto* model = bench->add_option("MODEL", b->model, "Checkpoint folder (left out: the embedded demo model)");
  add_list(*bench, "--tokens", b->tokens, "Decode steps to time, or new tokens of a request", lengths())
      ->type_name("D");
  add_list(*bench, "--prompt-tokens", b->prompt_tokens, "Tokens of the random prompt", lengths())->type_name("D");
  add_list(*bench, "--batch", b->batch, "Sequences at once, step by step together", at_least(1));
  bench
      ->add_option("--repetitions", b->options.repetitions,
                   "Times that each row's timed part runs: mean and standard deviation")
      ->check(at_least(1))
      ->capture_default_str();
  auto* markdown = bench->add_option("--markdown", b->markdown, "FILE: the table for a page")->check(writable_file());
  auto* csv = bench->add_option("--csv", b->csv, "FILE: a line for every row")->check(writable_file());
  auto* trace = bench
                    ->add_option("--trace", b->trace,
                                 "FILE: one prefill and one decode step of the first row, op by op, for Perfetto")
                    ->check(writable_file());
  bench->add_option("--compare", b->compare, "A B: two checkpoints, their steps in turn; the ratio with its error")
      ->expected(2)
      ->excludes(model)
      ->excludes(markdown)
      ->excludes(csv)
      ->excludes(trace);
  CLI::Option* ops = add_ops(*bench, *b, model);
  bench->add_option("--seed", b->options.seed, "Seed of the prompt")->check(at_least(0))->capture_default_str();
  bench->add_option("--dtype", b->dtype, "Arithmetic: bf16 or float32")->capture_default_str();
  add_kv_cache(*bench, b->kv_cache);
  add_head(*bench, b->head);
  add_acts(*bench, b->acts);
  CLI::Option* tp = add_tp(*bench, b->tp);
  CLI::Option* traffic = add_traffic(*bench, *b);
  add_common(*bench, b->common);
  for (const char* name : {"--tokens", "--prompt-tokens", "--batch", "--repetitions", "--trace", "--compare", "--seed",
                           "--dtype", "--kv-cache", "--head", "--acts"})
    ops->excludes(bench->get_option(name));
  tp->excludes(ops)->excludes("--compare");
  bench->callback([b, ops, traffic] {
    const auto ranks = ranks_for(b->tp);
    if (traffic->count() > 0) return run_traffic(*b);
    ops->count() > 0 ? run_ops(*b) : run_bench(*b, ranks.get());
  });
}

}  // namespace fewbit::cli
