// `runner generate [MODEL]`, and the list of the program's commands.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/strings.h"
#include "src/run/engine.h"
#include "src/run/speculate/draft_model.h"
#include "src/run/speculate/mtp_head.h"
#include "src/run/speculate/speculative.h"
#include "src/text/corpus.h"
#include "tools/cli/options.h"
#include "tools/cli/ranks.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/runner/speculation_args.h"
#include "tools/cli/runner/speculation_text.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

struct GenerateArgs {
  Common common;
  std::string model, dtype = "bf16", kv_cache = "bf16", head = "stored", acts = "bf16", prompt, prompt_file;
  SpeculationArgs speculation;
  int64_t max_tokens = 128;
  int tp = 1;
  SamplerOptions sampler;
};

// Prints what is new in the decoded text, so that a character made of several tokens appears whole.
class Streamer {
 public:
  Streamer(const Tokenizer& tokenizer, bool enabled) : tokenizer_(tokenizer), enabled_(enabled) {}
  void operator()(int32_t id) {
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_, true);
    if (text.size() < shown_ || ends_with(text, "\xef\xbf\xbd")) return;  // an unfinished character decodes to U+FFFD
    if (enabled_) {
      fmt::print("{}", text.substr(shown_));
      std::fflush(stdout);
    }
    shown_ = text.size();
  }
  std::string text() const { return tokenizer_.decode(ids_, true); }
  size_t shown() const { return shown_; }

 private:
  const Tokenizer& tokenizer_;
  bool enabled_;
  std::vector<int32_t> ids_;
  size_t shown_ = 0;
};

// What a run was asked for, checked before weights are read.
struct Asked {
  const Checkpoint& c;
  LoadOptions load;
  SpeculateOptions speculate;
  const std::optional<Checkpoint>& draft;
  const std::optional<MtpLayer>& mtp;
  std::string prompt;
  std::vector<int32_t> ids;
  int64_t length;
};

// The tokens after the prompt, by either engine; a report where drafts were asked for.
Speculated continued(const GenerateArgs& a, Exec& ex, const Asked& asked, Streamer& stream) {
  const auto note = [&](const std::vector<std::string>& notes, const char* whose) {
    for (const std::string& line : notes) say(a.common, fmt::format("note: {}{}\n", whose, line));
  };
  if (asked.speculate.k == 0) {
    Engine engine(ex, asked.c, {.load = asked.load, .capacity = asked.length});
    note(engine.notes(), "");
    say(a.common, asked.prompt);
    return {.ids = generate(ex, engine, asked.ids, a.max_tokens, a.sampler, std::ref(stream))};
  }
  Engine engine(ex, asked.c, {.load = asked.load, .capacity = asked.length});
  note(engine.notes(), "");
  std::optional<DraftModel> model;
  std::optional<MtpHead> mtp;
  if (asked.draft) {
    LoadOptions load = asked.load;
    load.head = HeadType::stored;
    load.acts = ActsType::bf16;
    model.emplace(ex, *asked.draft, load, asked.length, asked.c.spec.vocab);
    note(model->notes(), "draft model: ");
  }
  if (asked.mtp) {
    mtp.emplace(ex, *asked.mtp, asked.load, asked.length);
    note(mtp->notes(), "MTP layer: ");
  }
  say(a.common, asked.prompt);
  const Drafter drafter = model ? model->drafter() : mtp ? mtp->drafter() : ngram_drafter();
  return generate_speculating(ex, engine, drafter, asked.ids, a.max_tokens, a.sampler, asked.speculate,
                              std::ref(stream));
}

void run_generate(const GenerateArgs& a) {
  const SpeculateOptions speculate = speculation_of(a.speculation);
  const auto ranks = ranks_for(a.tp);
  const LoadOptions load{
      .dtype = compute_dtype(a.dtype),
      .kv_cache = kv_type_from(a.kv_cache),
      .head = head_type_from(a.head),
      .acts = acts_type_from(a.acts),
      .ranks = ranks.get(),
  };
  if (speculate.k > 0) check_paged_type("--speculate", load.kv_cache);
  const Checkpoint c = Checkpoint::open(model_or_demo(a.common, a.model));
  check_cache_type(c.spec, load.kv_cache);
  shared_spec(c, load);  // refuses what ranks cannot share before anything is read
  const Tokenizer tokenizer = Tokenizer::open(c.dir);
  const std::string prompt = a.prompt_file.empty() ? a.prompt : read_text(a.prompt_file);
  const std::vector<int32_t> ids = tokenizer.encode(prompt);
  if (ids.empty()) fail(ErrorKind::usage, "the prompt is empty and the tokenizer adds no BOS; give --prompt TEXT");
  const int64_t length = static_cast<int64_t>(ids.size()) + a.max_tokens;
  if (length > c.spec.max_positions)
    fail(ErrorKind::usage, fmt::format("{} prompt tokens and {} new ones exceed the model's {} positions", ids.size(),
                                       a.max_tokens, c.spec.max_positions));
  std::optional<Checkpoint> draft;
  if (!a.speculation.draft.empty()) draft = draft_model(a.speculation.draft, c, tokenizer, length);
  std::optional<MtpLayer> mtp;
  if (speculate.kind == DraftKind::mtp) mtp = open_mtp(c);
  Exec ex = make_exec(a.common);
  if (speculate.k > 0 && (ex.on_cuda() || ranks))
    fail(ErrorKind::unsupported,
         fmt::format("--speculate: drafts are checked on the CPU, by one rank, in this version; "
                     "{}",
                     ranks ? "leave --tp out" : "take --device cpu"));
  Streamer stream(tokenizer, !a.common.json_to_stdout() && the_ranks().rank() == 0);
  const Asked asked{c, load, speculate, draft, mtp, prompt, ids, length};
  const Speculated out = continued(a, ex, asked, stream);
  const std::string text = stream.text();
  say(a.common, text.substr(std::min(stream.shown(), text.size())) + "\n");
  if (speculate.k > 0) say(a.common, text_of(out.report));
  const nlohmann::ordered_json j = {
      {"model", c.dir.string()},
      {"prompt", prompt},
      {"text", text},
      {"prompt_ids", ids},
      {"ids", out.ids},
      {"device", ex.device_name()},
      {"dtype", a.dtype},
      {"kv_cache", a.kv_cache},
      {"head", a.head},
      {"acts", a.acts},
      {"tp", a.tp},
      {"draft_model", draft ? nlohmann::ordered_json(draft->dir.string()) : nullptr},
      {"speculation", speculate.k > 0 ? nlohmann::ordered_json::parse(json_of(out.report)) : nullptr}};
  write_json(a.common, j.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_runner_commands(CLI::App& app) {
  app.require_subcommand(1);
  add_bench_command(app);
  add_plan_command(app);
  const auto g = std::make_shared<GenerateArgs>();
  CLI::App* generate = app.add_subcommand("generate", "Continue a prompt, greedily or by sampling");
  generate->add_option("MODEL", g->model, "Checkpoint folder (left out: the embedded demo model)");
  auto* prompt = generate->add_option("--prompt", g->prompt, "Text to continue");
  generate->add_option("--prompt-file", g->prompt_file, "Read the prompt from FILE")->excludes(prompt);
  generate->add_option("--max-tokens", g->max_tokens, "New tokens at most")->check(at_least(1))->capture_default_str();
  generate->add_option("--temperature", g->sampler.temperature, "0 = greedy")
      ->check(number_in(0, 100))
      ->capture_default_str();
  generate->add_option("--top-k", g->sampler.top_k, "Only the K most likely (0 = all)")
      ->check(at_least(0))
      ->capture_default_str();
  generate->add_option("--top-p", g->sampler.top_p, "Nucleus")->check(number_in(0, 1))->capture_default_str();
  generate->add_option("--min-p", g->sampler.min_p, "Drop what is below this share of the likeliest")
      ->check(number_in(0, 1))
      ->capture_default_str();
  generate->add_option("--seed", g->sampler.seed, "Seed of the sampling")->check(at_least(0))->capture_default_str();
  add_speculation(*generate, g->speculation);
  generate->add_option("--dtype", g->dtype, "Arithmetic: bf16 or float32")->capture_default_str();
  add_kv_cache(*generate, g->kv_cache);
  add_head(*generate, g->head);
  add_acts(*generate, g->acts);
  add_tp(*generate, g->tp);
  add_common(*generate, g->common);
  generate->callback([g] { run_generate(*g); });
  add_serve_command(app);
  add_template_command(app);
  add_tokenize_command(app);
}

}  // namespace fewbit::cli
