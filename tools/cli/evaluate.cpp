// `evaluate perplexity [MODEL]`, `evaluate compare BASE MODEL…` and `evaluate verify OUT`.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/eval/divergence.h"
#include "src/eval/perplexity.h"
#include "src/eval/verify.h"
#include "tools/cli/options.h"

namespace fewbit::cli {
namespace {

// What is scored, and how.
struct DataArgs {
  Common common;
  std::string data = "builtin", dtype = "bf16", kv_cache = "bf16";
  int64_t context = 0, max_windows = 0, batch_tokens = 0;
  LoadOptions load() const { return {.dtype = compute_dtype(dtype), .kv_cache = kv_type_from(kv_cache)}; }
  int64_t tokens_per_pass(const Exec& ex) const {
    return batch_tokens > 0 ? batch_tokens : (ex.on_cuda() ? 32768 : 8192);
  }
};

void add_data_arguments(CLI::App& app, DataArgs& a) {
  app.add_option("--data", a.data,
                 "builtin, a text FILE, or a .safetensors FILE whose input_ids [n, t] are n windows")
      ->capture_default_str();
  app.add_option("--context", a.context, "Tokens per window (default: 2048, at most the model's positions)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--max-windows", a.max_windows, "Only the first N windows")->check(CLI::PositiveNumber);
  app.add_option("--dtype", a.dtype, "Arithmetic: bf16 or float32 (packed weights are then dequantized)")
      ->capture_default_str();
  add_kv_cache(app, a.kv_cache);
  app.add_option("--batch-tokens", a.batch_tokens, "Tokens per forward pass")->check(CLI::PositiveNumber);
  add_common(app, a.common);
}

Windows windows_from_safetensors(const std::string& path, int64_t max_windows) {
  const CheckpointIndex index = container_safetensors.open(path);
  const auto it = index.tensors.find("input_ids");
  if (it == index.tensors.end())
    fail(ErrorKind::checkpoint, fmt::format("{}: no tensor input_ids [windows, tokens]", path));
  const TensorInfo& info = it->second;
  if (info.shape.rank() != 2 || (info.dtype != DType::i32 && info.dtype != DType::i64) || info.shape[1] < 2)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: input_ids: expected i32 or i64 [windows, tokens >= 2], found {} {}", path,
                     name_of(info.dtype), info.shape.str()));
  const Tensor t = clone_host(index.view(info));
  std::vector<int32_t> ids(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < t.numel(); ++i)
    ids[static_cast<size_t>(i)] =
        info.dtype == DType::i32 ? t.as<int32_t>()[i] : static_cast<int32_t>(t.as<int64_t>()[i]);
  const int64_t count = max_windows > 0 ? std::min(max_windows, info.shape[0]) : info.shape[0];
  ids.resize(static_cast<size_t>(count * info.shape[1]));
  return windows_from_ids(std::move(ids), count, info.shape[1], path);
}

// The windows to score; refused where they exceed the model's positions.
Windows load_windows(const DataArgs& a, const Checkpoint& c) {
  if (a.context > c.spec.max_positions)
    fail(ErrorKind::usage,
         fmt::format("--context {} exceeds the model's {} positions", a.context, c.spec.max_positions));
  if (!ends_with(a.data, ".safetensors")) {
    const std::string text = a.data == "builtin" ? builtin_evaluation() : read_text(a.data);
    const int64_t context = a.context > 0 ? a.context : std::min<int64_t>(2048, c.spec.max_positions);
    return cut_windows(Tokenizer::open(c.dir), text, context, a.max_windows, a.data);
  }
  Windows w = windows_from_safetensors(a.data, a.max_windows);
  if (w.length > c.spec.max_positions)
    fail(ErrorKind::usage, fmt::format("{}: windows of {} tokens exceed the model's {} positions", a.data,
                                       w.length, c.spec.max_positions));
  return w;
}

struct PerplexityArgs : DataArgs {
  std::string model;
  bool reference = false;
};

PerplexityResult run_once(Exec& ex, const PerplexityArgs& a, const Checkpoint& c, const Windows& w,
                          Weights weights) {
  Progress progress(a.common);
  LoadOptions load = a.load();
  load.weights = weights;
  Runner runner(ex, c, load);
  for (const std::string& note : runner.notes()) say(a.common, "note: " + note + "\n");
  return perplexity(runner, w, a.tokens_per_pass(ex), [&](int64_t done, int64_t total) {
    progress.update("evaluating", static_cast<double>(done) / static_cast<double>(total));
  });
}

void run_perplexity(const PerplexityArgs& a) {
  a.load();  // refuses unknown names before anything is opened
  const Checkpoint c = Checkpoint::open(model_or_demo(a.common, a.model));
  const Windows w = load_windows(a, c);
  Exec ex = make_exec(a.common);
  const PerplexityResult r = run_once(ex, a, c, w, Weights::packed);
  say(a.common, fmt::format("perplexity {:.4f} +- {:.4f}  ({} windows of {}, {} predicted tokens, {}, "
                            "protocol plain, {} cache, {}, {})\n",
                            r.perplexity, r.stderr_, r.windows, r.context, r.tokens, a.dtype,
                            a.kv_cache, ex.device_name(), human_seconds(r.seconds)));
  nlohmann::ordered_json j = {{"perplexity", r.perplexity}, {"stderr", r.stderr_},  {"mean_nll", r.mean_nll},
                              {"tokens", r.tokens},         {"windows", r.windows}, {"context", r.context},
                              {"protocol", "plain"},        {"dtype", a.dtype},     {"kv_cache", a.kv_cache},
                              {"seconds", r.seconds},
                              {"model", c.dir.string()},    {"format", c.format},   {"data", w.source},
                              {"device", ex.device_name()}};
  if (a.reference) {
    const PerplexityResult ref = run_once(ex, a, c, w, Weights::reference);
    const double difference = r.perplexity / ref.perplexity - 1;
    say(a.common,
        fmt::format(
            "reference  {:.4f} +- {:.4f}  (dequantized, dense); the packed kernels differ by {:+.4f} %\n",
            ref.perplexity, ref.stderr_, 100 * difference));
    j["reference"] = {{"perplexity", ref.perplexity},
                      {"stderr", ref.stderr_},
                      {"mean_nll", ref.mean_nll},
                      {"relative_difference", difference}};
  }
  write_json(a.common, j.dump(1) + "\n");
}

struct CompareArgs : DataArgs {
  std::string base;
  std::vector<std::string> models;
};

nlohmann::ordered_json json_of(const std::string& model, const DivergenceResult& r) {
  return {{"model", model},
          {"perplexity", r.perplexity},
          {"ln_ratio", r.ln_ratio},
          {"ln_ratio_stderr", r.ln_ratio_stderr},
          {"kl",
           {{"mean", r.kl.mean}, {"p50", r.kl.p50}, {"p90", r.kl.p90}, {"p99", r.kl.p99}, {"max", r.kl.max}}},
          {"top1", r.top1},
          {"top5", r.top5},
          {"tokens", r.tokens},
          {"windows", r.windows},
          {"seconds", r.seconds}};
}

std::string row_of(const std::string& model, const DivergenceResult& r) {
  return fmt::format(
      "{:<32} {:>11.4f} {:>+11.5f} +- {:.5f} {:>10.6f} {:>10.6f} {:>10.6f} {:>10.6f} {:>6.2f} % {:>6.2f} %\n",
      model, r.perplexity, r.ln_ratio, r.ln_ratio_stderr, r.kl.mean, r.kl.p50, r.kl.p90, r.kl.p99,
      100 * r.top1, 100 * r.top5);
}

// Opens the checkpoints to compare; refuses another vocabulary before anything is loaded.
std::vector<Checkpoint> open_models(const CompareArgs& a, const Checkpoint& base) {
  std::vector<Checkpoint> models;
  for (const std::string& m : a.models) {
    models.push_back(Checkpoint::open(m));
    if (models.back().spec.vocab != base.spec.vocab)
      fail(ErrorKind::usage,
           fmt::format("{} has a vocabulary of {} and {} one of {}; they cannot be compared", m,
                       models.back().spec.vocab, a.base, base.spec.vocab));
  }
  return models;
}

void run_compare(const CompareArgs& a) {
  const LoadOptions load = a.load();
  const Checkpoint base = Checkpoint::open(a.base);
  const std::vector<Checkpoint> models = open_models(a, base);
  const Windows w = load_windows(a, base);
  Exec ex = make_exec(a.common);
  Runner base_runner(ex, base, {.dtype = load.dtype});
  nlohmann::ordered_json j = {{"base", a.base},
                              {"data", w.source},
                              {"context", w.length},
                              {"dtype", a.dtype},
                              {"kv_cache", a.kv_cache},
                              {"device", ex.device_name()}};
  j["models"] = nlohmann::ordered_json::array();
  std::string table =
      fmt::format("{:<32} {:>11} {:>23} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}\n", "against " + a.base,
                  "perplexity", "ln ratio", "KL mean", "p50", "p90", "p99", "top-1", "top-5");
  for (size_t i = 0; i < models.size(); ++i) {
    Progress progress(a.common);
    Runner runner(ex, models[i], load);
    for (const std::string& note : runner.notes()) say(a.common, "note: " + a.models[i] + ": " + note + "\n");
    const DivergenceResult r =
        divergence(ex, base_runner, runner, w, a.tokens_per_pass(ex), [&](int64_t done, int64_t total) {
          progress.update("comparing " + a.models[i], static_cast<double>(done) / static_cast<double>(total));
        });
    if (i == 0) {
      j["base_perplexity"] = r.base_perplexity;
      table += fmt::format("{:<32} {:>11.4f}\n", "(base)", r.base_perplexity);
    }
    table += row_of(a.models[i], r);
    j["models"].push_back(json_of(a.models[i], r));
  }
  say(a.common, table);
  write_json(a.common, j.dump(1) + "\n");
}

struct VerifyArgs {
  Common common;
  std::string out;
};

void run_verify(const VerifyArgs& a) {
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const VerifyResult r = verify(ex, a.out, [&](double f) { progress.update("unpacking", f); });
  nlohmann::ordered_json j = {{"ok", r.ok()}, {"linears", r.linears}, {"logits_error", r.logits_error}};
  j["problems"] = nlohmann::ordered_json::array();
  for (const VerifyProblem& p : r.problems) {
    say(a.common, fmt::format("problem: {}{}\n", p.linear.empty() ? "" : p.linear + ": ", p.what));
    j["problems"].push_back({{"linear", p.linear}, {"what", p.what}});
  }
  write_json(a.common, j.dump(1) + "\n");
  if (!r.ok()) fail(ErrorKind::checkpoint, fmt::format("{}: {} problems", a.out, r.problems.size()));
  say(a.common,
      fmt::format(
          "ok: {} linears unpack to the hashes of the report; packed against dequantized logits: {:.2e}\n",
          r.linears, r.logits_error));
}

}  // namespace

void add_evaluate_commands(CLI::App& app) {
  app.require_subcommand(1);
  const auto p = std::make_shared<PerplexityArgs>();
  CLI::App* perplexity =
      app.add_subcommand("perplexity", "Perplexity over non-overlapping windows, with its standard error");
  perplexity->add_option("MODEL", p->model, "Checkpoint folder (left out: the embedded demo model)");
  perplexity->add_flag("--reference", p->reference,
                       "Also run the dequantized dense weights and print the difference");
  add_data_arguments(*perplexity, *p);
  perplexity->callback([p] { run_perplexity(*p); });
  const auto k = std::make_shared<CompareArgs>();
  CLI::App* compare = app.add_subcommand(
      "compare", "Distance of models from a baseline: KL, paired perplexity ratio, top-1, top-5");
  compare->add_option("BASE", k->base, "The baseline, usually the bf16 checkpoint")->required();
  compare->add_option("MODEL", k->models, "Checkpoints to compare with it")->required();
  add_data_arguments(*compare, *k);
  compare->callback([k] { run_compare(*k); });
  const auto v = std::make_shared<VerifyArgs>();
  CLI::App* verify =
      app.add_subcommand("verify", "Reopen a written checkpoint, unpack it, compare with its report, run it");
  verify->add_option("OUT", v->out, "A checkpoint written by `quantize`")->required();
  add_common(*verify, v->common);
  verify->callback([v] { run_verify(*v); });
}

}  // namespace fewbit::cli
