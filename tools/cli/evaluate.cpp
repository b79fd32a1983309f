// `evaluate perplexity [MODEL]` and `evaluate verify OUT`.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/eval/perplexity.h"
#include "src/eval/verify.h"
#include "tools/cli/options.h"

namespace fewbit::cli {
namespace {

struct PerplexityArgs {
  Common common;
  std::string model, data = "builtin", dtype = "bf16";
  int64_t context = 0, max_windows = 0, batch_tokens = 0;
  bool reference = false;
};

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

Windows load_windows(const PerplexityArgs& a, const Checkpoint& c) {
  if (ends_with(a.data, ".safetensors")) return windows_from_safetensors(a.data, a.max_windows);
  const std::string text = a.data == "builtin" ? builtin_evaluation() : read_text(a.data);
  const int64_t context = a.context > 0 ? a.context : std::min<int64_t>(2048, c.spec.max_positions);
  return cut_windows(Tokenizer::open(c.dir), text, context, a.max_windows, a.data);
}

PerplexityResult run_once(Exec& ex, const PerplexityArgs& a, const Checkpoint& c, const Windows& w,
                          Weights weights) {
  Progress progress(a.common);
  Runner runner(ex, c, {.dtype = compute_dtype(a.dtype), .weights = weights});
  for (const std::string& note : runner.notes()) say(a.common, "note: " + note + "\n");
  const int64_t batch_tokens = a.batch_tokens > 0 ? a.batch_tokens : (ex.on_cuda() ? 32768 : 8192);
  return perplexity(runner, w, batch_tokens, [&](int64_t done, int64_t total) {
    progress.update("evaluating", static_cast<double>(done) / static_cast<double>(total));
  });
}

void run_perplexity(const PerplexityArgs& a) {
  compute_dtype(a.dtype);
  const Checkpoint c = Checkpoint::open(model_or_demo(a.common, a.model));
  if (a.context > c.spec.max_positions)
    fail(ErrorKind::usage,
         fmt::format("--context {} exceeds the model's {} positions", a.context, c.spec.max_positions));
  const Windows w = load_windows(a, c);
  if (w.length > c.spec.max_positions)
    fail(ErrorKind::usage, fmt::format("{}: windows of {} tokens exceed the model's {} positions", a.data,
                                       w.length, c.spec.max_positions));
  Exec ex = make_exec(a.common);
  const PerplexityResult r = run_once(ex, a, c, w, Weights::packed);
  say(a.common, fmt::format("perplexity {:.4f} +- {:.4f}  ({} windows of {}, {} predicted tokens, {}, "
                            "protocol plain, {}, {})\n",
                            r.perplexity, r.stderr_, r.windows, r.context, r.tokens, a.dtype,
                            ex.device_name(), human_seconds(r.seconds)));
  nlohmann::ordered_json j = {{"perplexity", r.perplexity}, {"stderr", r.stderr_},  {"mean_nll", r.mean_nll},
                              {"tokens", r.tokens},         {"windows", r.windows}, {"context", r.context},
                              {"protocol", "plain"},        {"dtype", a.dtype},     {"seconds", r.seconds},
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
  perplexity
      ->add_option("--data", p->data,
                   "builtin, a text FILE, or a .safetensors FILE whose input_ids [n, t] are n windows")
      ->capture_default_str();
  perplexity
      ->add_option("--context", p->context,
                   "Tokens per window (default: 2048, at most the model's positions)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  perplexity->add_option("--max-windows", p->max_windows, "Only the first N windows")
      ->check(CLI::PositiveNumber);
  perplexity
      ->add_option("--dtype", p->dtype, "Arithmetic: bf16 or float32 (packed weights are then dequantized)")
      ->capture_default_str();
  perplexity->add_flag("--reference", p->reference,
                       "Also run the dequantized dense weights and print the difference");
  perplexity->add_option("--batch-tokens", p->batch_tokens, "Tokens per forward pass")
      ->check(CLI::PositiveNumber);
  add_common(*perplexity, p->common);
  perplexity->callback([p] { run_perplexity(*p); });
  const auto v = std::make_shared<VerifyArgs>();
  CLI::App* verify =
      app.add_subcommand("verify", "Reopen a written checkpoint, unpack it, compare with its report, run it");
  verify->add_option("OUT", v->out, "A checkpoint written by `quantize`")->required();
  add_common(*verify, v->common);
  verify->callback([v] { run_verify(*v); });
}

}  // namespace fewbit::cli
