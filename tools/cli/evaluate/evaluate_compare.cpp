// `evaluate compare BASE MODEL…`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/text/with_error.h"
#include "src/eval/exact_inputs.h"
#include "src/eval/layers.h"
#include "tools/cli/evaluate/compare_models.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

// Tokens in front of a worst token that its context shows.
constexpr int64_t kContextTokens = 16;
// Tokens that --layers looks at.
constexpr int64_t kLayerTokens = 2048;
// Worst tokens that the table names; the JSON has --worst of them.
constexpr size_t kShownWorst = 5;

Json worst_json(const DivergenceResult& r, const ScoredWindows& w, const Tokenizer* tokenizer) {
  Json list = Json::array();
  for (const WorstToken& t : r.worst) {
    Json j = {{"window", t.window},     {"position", t.position}, {"kl", t.kl},
              {"token", t.token},       {"base_p", t.base_p},     {"p", t.p},
              {"base_top", t.base_top}, {"top", t.model_top}};
    if (tokenizer) {
      const int64_t begin = std::max<int64_t>(0, t.position - kContextTokens), at = t.window * w.windows.length;
      const auto text = [&](std::span<const int32_t> ids) { return tokenizer->decode(ids); };
      j["context"] = text(
          std::span(w.windows.ids).subspan(static_cast<size_t>(at + begin), static_cast<size_t>(t.position - begin)));
      j["text"] = {
          {"token", text({&t.token, 1})}, {"base_top", text({&t.base_top, 1})}, {"top", text({&t.model_top, 1})}};
    }
    list.push_back(std::move(j));
  }
  return list;
}

std::string heading(const std::string& base) {
  return fmt::format("{:<32} {:>11} {:>23} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8}\n", "against " + base,
                     "perplexity", "ln ratio", "KL mean", "p50", "p90", "p99", "max", "top-1", "top-5");
}

std::string row_of(const std::string& name, const DivergenceResult& r) {
  return fmt::format(
      "{:<32} {:>11.4f} {:>+11.5f}{:<10} {:>10.6f} {:>10.6f} {:>10.6f} {:>10.6f} {:>10.4f} {:>6.2f} % "
      "{:>6.2f} %\n",
      name, r.perplexity, r.ln_ratio, std::isnan(r.ln_ratio_stderr) ? "" : fmt::format(" ± {:.5f}", r.ln_ratio_stderr),
      r.kl.mean, r.kl.p50, r.kl.p90, r.kl.p99, r.kl.max, 100 * r.top1, 100 * r.top5);
}

Json json_of(const DivergenceResult& r, const ScoredWindows& w, const Tokenizer* tokenizer) {
  Json j = {{"perplexity", r.perplexity},
            {"stderr", r.stderr_},
            {"ln_ratio", r.ln_ratio},
            {"ln_ratio_stderr", r.ln_ratio_stderr},
            {"kl",
             {{"mean", r.kl.mean},
              {"stderr", r.kl.stderr_},
              {"p50", r.kl.p50},
              {"p90", r.kl.p90},
              {"p99", r.kl.p99},
              {"max", r.kl.max}}},
            {"top1", r.top1},
            {"top1_stderr", r.top1_stderr},
            {"top5", r.top5},
            {"shift", {{"mean", r.shift_mean}, {"rms", r.shift_rms}, {"edges", kShiftEdges}, {"tokens", r.shifts}}},
            {"tokens", r.tokens},
            {"windows", r.windows},
            {"seconds", r.seconds}};
  j["worst"] = worst_json(r, w, tokenizer);
  return j;
}

std::string shift_table(const DivergenceResult& r) {
  std::string s = fmt::format("  probability of the text's token: mean shift {:+.3f} %, rms {:.3f} %\n",
                              100 * r.shift_mean, 100 * r.shift_rms);
  for (size_t i = 0; i < r.shifts.size(); ++i) {
    const double share = 100 * static_cast<double>(r.shifts[i]) / static_cast<double>(r.tokens);
    s += fmt::format("  {:>+5.0f} … {:>+5.0f} % {:>7.2f} % {}\n", 100 * kShiftEdges[i], 100 * kShiftEdges[i + 1], share,
                     std::string(static_cast<size_t>(share / 2 + 0.5), '#'));
  }
  return s;
}

std::string worst_table(const Json& worst) {
  std::string s;
  for (size_t i = 0; i < std::min(kShownWorst, worst.size()); ++i) {
    const Json& t = worst[i];
    if (!t.contains("text")) return s;
    const auto quoted = [](const Json& text) { return text.dump(-1, ' ', false, Json::error_handler_t::replace); };
    s += fmt::format("  KL {:.3f}  …{} {}: {:.1f} % -> {:.1f} %, likeliest {} -> {}\n", t["kl"].get<double>(),
                     quoted(t["context"]), quoted(t["text"]["token"]), 100 * t["base_p"].get<double>(),
                     100 * t["p"].get<double>(), quoted(t["text"]["base_top"]), quoted(t["text"]["top"]));
  }
  return s.empty() ? "" : "  tokens that differ most:\n" + s;
}

Json json_of(const Closeness& c) { return {{"cosine", c.cosine}, {"sqnr_db", c.sqnr_db}}; }

Json json_of(const std::vector<LayerCloseness>& layers) {
  Json list = Json::array();
  for (const LayerCloseness& l : layers) {
    Json j = {
        {"layer", l.layer}, {"states", json_of(l.states)}, {"alone", json_of(l.alone)}, {"linears", Json::array()}};
    for (const LinearCloseness& linear : l.linears) {
      Json entry = {{"name", linear.name}};
      entry.update(json_of(linear.value));
      j["linears"].push_back(std::move(entry));
    }
    list.push_back(std::move(j));
  }
  return list;
}

std::string layer_table(const std::vector<LayerCloseness>& layers) {
  std::string s = "  layer    states: cosine   SQNR dB   block alone   worst linear\n";
  for (const LayerCloseness& l : layers) {
    const auto worst = std::min_element(l.linears.begin(), l.linears.end(),
                                        [](const auto& a, const auto& b) { return a.value.sqnr_db < b.value.sqnr_db; });
    s += fmt::format("  {:>5} {:>17.6f} {:>9.2f} {:>13.2f}   {}\n", l.layer, l.states.cosine, l.states.sqnr_db,
                     l.alone.sqnr_db,
                     worst == l.linears.end() ? "" : fmt::format("{} {:.2f}", worst->name, worst->value.sqnr_db));
  }
  return s;
}

// The distance that bf16 arithmetic alone makes: BASE in bf16 against BASE in float32.
DivergenceResult noise_floor(Exec& ex, const CompareArgs& a, const Baseline& base, Progress& progress) {
  const bool bf16 = a.load().dtype == DType::bf16;
  // Both round inputs or neither does: those of the baseline say which.
  const LoadOptions own = with_exact_inputs({.dtype = a.load().dtype}, base.checkpoint());
  Runner other(ex, base.checkpoint(), {.dtype = bf16 ? DType::f32 : DType::bf16, .weights = own.weights});
  const LogitSource logits = logits_from(ex, other, base.windows());
  return divergence(
      ex, bf16 ? logits : base.logits(), bf16 ? base.logits() : logits, base.windows(),
      {.batch_tokens = a.tokens_per_pass(ex), .worst = 0, .progress = report_to(progress, "noise floor")});
}

void run_compare(const CompareArgs& a) {
  a.load();  // refuses unknown names before anything is opened
  const Checkpoint base_checkpoint = Checkpoint::open(a.base);
  Baseline base(a, base_checkpoint);
  std::vector<Checkpoint> models;
  for (const std::string& m : a.models) models.push_back(open_for_comparison(a, base, m));
  const std::optional<Tokenizer> tokenizer = tokenizer_of(base_checkpoint);
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  base.load(ex, progress);
  Json j = {{"base", a.base},
            {"data", base.windows().windows.source},
            {"context", base.windows().windows.length},
            {"protocol", name_of(base.windows().protocol)},
            {"dtype", a.dtype},
            {"kv_cache", a.kv_cache},
            {"head", a.head},
            {"acts", a.acts},
            {"device", ex.device_name()}};
  j["models"] = Json::array();
  std::string table = heading(a.base), details;
  for (size_t i = 0; i < models.size(); ++i) {
    const DivergenceResult r = compare_with(ex, a, base, models[i], progress);
    if (i == 0) {
      j["base_perplexity"] = r.base_perplexity;
      j["base_stderr"] = r.base_stderr;
      table += fmt::format("{:<32}     {}\n", "(base)", with_error(r.base_perplexity, r.base_stderr, 4));
    }
    table += row_of(a.models[i], r);
    Json entry = {{"model", a.models[i]}, {"cache_bytes_per_token", a.cache_bytes_per_token(models[i])}};
    entry.update(json_of(r, base.windows(), tokenizer ? &*tokenizer : nullptr));
    details += a.models[i] + "\n" + shift_table(r) + worst_table(entry["worst"]);
    if (a.layers) {
      const auto layers =
          layer_closeness(ex, base_checkpoint, models[i], {.dtype = a.load().dtype}, base.windows().windows,
                          kLayerTokens, report_to(progress, "comparing layers"));
      entry["layers"] = json_of(layers);
      details += layer_table(layers);
    }
    j["models"].push_back(std::move(entry));
  }
  if (a.noise_floor) {
    const DivergenceResult r = noise_floor(ex, a, base, progress);
    table += row_of("(bf16 arithmetic alone)", r);
    j["noise_floor"] = json_of(r, base.windows(), nullptr);
  }
  progress.update("done", 1);
  say(a.common, table + details);
  write_json(a.common, j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_compare_command(CLI::App& app) {
  const auto a = std::make_shared<CompareArgs>();
  CLI::App* command =
      app.add_subcommand("compare", "Distance of models from a baseline: KL, paired perplexity ratio, top-1, top-5");
  command->add_option("BASE", a->base, "The baseline, usually the bf16 checkpoint")->required();
  command->add_option("MODEL", a->models, "Checkpoints to compare with it")->required();
  command->add_option("--base-cache", a->base_cache,
                      "DIR: keep the baseline's logits there (2 bytes each) and use them when they are there");
  command->add_option("--worst", a->worst, "Tokens to name, those that differ most")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--noise-floor", a->noise_floor,
                    "Also compare BASE in bf16 with itself in float32: distances below that are equality");
  command->add_flag("--layers", a->layers, "Also compare the states behind every block and every linear's outputs");
  add_data_arguments(*command, *a);
  add_acts(*command, a->acts);
  command->callback([a] { run_compare(*a); });
}

}  // namespace fewbit::cli
