// `evaluate perplexity [MODEL]`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/eval/exact_inputs.h"
#include "tools/cli/evaluate/evaluate_data.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PerplexityArgs : DataArgs {
  std::string model;
  bool reference = false, offload = false;
  int tp = 1;
};

PerplexityResult run_once(Exec& ex, const PerplexityArgs& a, const Checkpoint& c, const ScoredWindows& w,
                          const LoadOptions& load) {
  Progress progress(a.common);
  std::vector<std::string> notes;
  PerplexityResult r;
  if (a.offload) {
    r = perplexity_streamed(ex, c, load, w, a.tokens_per_pass(ex), &notes,
                            report_to(progress, "evaluating block by block"));
  } else {
    Runner runner(ex, c, load);
    notes = runner.notes();
    r = perplexity(runner, w, a.tokens_per_pass(ex), report_to(progress, "evaluating"));
  }
  for (std::string line : {exact_inputs_line(load), long_rope_line(c.spec, w.windows.length)})
    if (!line.empty()) notes.push_back(std::move(line));
  for (const std::string& note : notes) say(a.common, "note: " + note + "\n");
  return r;
}

Json or_null(double value) { return value > 0 ? Json(value) : Json(); }

Json json_of(const PerplexityArgs& a, const Checkpoint& c, const ScoredWindows& w, const PerplexityResult& r,
             const LoadOptions& load, const Exec& ex) {
  Json j = {{"perplexity", r.perplexity},
            {"stderr", r.stderr_},
            {"mean_nll", r.mean_nll},
            {"bits_per_byte", or_null(r.bits_per_byte)},
            {"word_perplexity", or_null(r.word_perplexity)},
            {"tokens", r.tokens},
            {"windows", r.windows},
            {"context", r.context},
            {"protocol", name_of(w.protocol)},
            {"dtype", a.dtype},
            {"kv_cache", a.kv_cache},
            {"cache_bytes_per_token", a.cache_bytes_per_token(c)},
            {"head", a.head},
            {"acts", a.acts},
            {"inputs", inputs_word(load, c)},
            {"tp", a.tp},
            {"seconds", r.seconds},
            {"phases", r.phases},
            {"model", c.dir.string()},
            {"format", c.format},
            {"data", w.windows.source},
            {"device", ex.device_name()}};
  if (w.stride > 0) j["stride"] = w.stride;
  return j;
}

std::string line_of(const PerplexityArgs& a, const Checkpoint& c, const ScoredWindows& w, const PerplexityResult& r,
                    const Exec& ex) {
  std::string s = fmt::format(
      "perplexity {}  ({} windows of {}, {} predicted tokens, protocol {}, {}, {} cache of {} B a token, {}, {}, "
      "{})\n",
      with_error(r.perplexity, r.stderr_, 4), r.windows, r.context, r.tokens, name_of(w.protocol), a.dtype, a.kv_cache,
      a.cache_bytes_per_token(c), head_and_acts(a.head, a.acts), ex.device_name(), human_seconds(r.seconds));
  if (r.bits_per_byte > 0)
    s += fmt::format("{:.4f} bits per byte, perplexity per word {:.2f}\n", r.bits_per_byte, r.word_perplexity);
  return s;
}

void run_perplexity(const PerplexityArgs& a) {
  const auto ranks = ranks_for(a.tp);
  LoadOptions load = a.load();  // refuses unknown names before anything is opened
  load.ranks = ranks.get();
  if (a.offload && load.kv_cache != KvType::plain)
    fail(ErrorKind::usage, "--offload keeps no keys and values; leave --kv-cache out");
  protocol_from(a.protocol);
  const Checkpoint c = Checkpoint::open(model_or_demo(a.common, a.model));
  load = with_exact_inputs(load, c);
  check_cache_type(c.spec, load.kv_cache);
  shared_spec(c, load);  // refuses what ranks cannot share before the text is read
  const ScoredWindows w = load_windows(a, c);
  Exec ex = make_exec(a.common);
  const PerplexityResult r = run_once(ex, a, c, w, load);
  say(a.common, line_of(a, c, w, r, ex));
  Json j = json_of(a, c, w, r, load, ex);
  if (a.reference) {
    if (load.weights == Weights::packed) load.weights = Weights::reference;
    load.acts = ActsType::bf16;
    const PerplexityResult ref = run_once(ex, a, c, w, load);
    const double difference = r.perplexity / ref.perplexity - 1;
    say(a.common, fmt::format("reference  {}  (dequantized, dense); the packed kernels differ by {:+.4f} %\n",
                              with_error(ref.perplexity, ref.stderr_, 4), 100 * difference));
    j["reference"] = {{"perplexity", ref.perplexity},
                      {"stderr", ref.stderr_},
                      {"mean_nll", ref.mean_nll},
                      {"relative_difference", difference}};
  }
  write_json(a.common, j.dump(1) + "\n");
}

}  // namespace

void add_perplexity_command(CLI::App& app) {
  const auto a = std::make_shared<PerplexityArgs>();
  CLI::App* command = app.add_subcommand("perplexity", "Perplexity by a named protocol, with its standard error");
  command->add_option("MODEL", a->model, "Checkpoint folder (left out: the embedded demo model)");
  command->add_flag("--reference", a->reference, "Also run the dequantized dense weights and print the difference");
  command->add_flag("--offload", a->offload, "One block at a time on the device, for models larger than its memory");
  add_tp(*command, a->tp);
  add_data_arguments(*command, *a);
  add_acts(*command, a->acts);
  command->callback([a] { run_perplexity(*a); });
}

}  // namespace fewbit::cli
