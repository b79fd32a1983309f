// `quantize RECIPE [MODEL [OUT]]`, `quantize plan …`, `quantize status OUT`, `quantize list`.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "kernels/cpu/arithmetic.h"
#include "src/core/file_io.h"
#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/model/archs.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/foreign/foreign.h"
#include "src/quant/journal/read_model.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/output/companions.h"
#include "src/quant/plan/engines.h"
#include "src/quant/plan/refusals.h"
#include "src/ranks/exchange.h"
#include "tools/cli/main.h"
#include "tools/cli/options.h"
#include "tools/cli/quantize/advise.h"
#include "tools/cli/quantize/calibration.h"
#include "tools/cli/quantize/imatrix_files.h"
#include "tools/cli/quantize/limits.h"
#include "tools/cli/quantize/list.h"
#include "tools/cli/quantize/measured_precision.h"
#include "tools/cli/quantize/open_model.h"
#include "tools/cli/quantize/print_plan.h"
#include "tools/cli/quantize/quantize_summary.h"
#include "tools/cli/quantize/recipe_flags.h"
#include "tools/cli/quantize/run_progress.h"
#include "tools/cli/quantize/status.h"
#include "tools/cli/quantize/times.h"
#include "tools/cli/ranks.h"
#include "tools/cli/runner/measure.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

constexpr const char* kCalibrationGroup = "Calibration";

struct QuantizeArgs : CalibrationArgs {
  Common common;
  LimitArgs limits;
  ImatrixArgs imatrix;
  std::string recipe, model, out;
  std::string words;  // of the recipe, that flags stand for
  std::string lora, engine, dtype = "auto", shard_size = "5GB";
  int64_t tp = 1;
  double minutes = 0;
  std::vector<std::string> set, keep, keep_source, drop;  // in command-line order each; `ordered` holds the first three
  std::vector<Rule> ordered;
  bool force = false, resume = false, restart = false, allow_rtn = false, allow_nonfinite = false;
  bool check_determinism = false, rehash = false, dry_run = false, measure = false;
};

std::string engine_names() {
  std::vector<std::string> names;
  for (const EngineRules& e : engines()) names.emplace_back(e.name);
  return join(names, ", ");
}

void add_arguments(CLI::App& app, QuantizeArgs& a) {
  app.add_option("RECIPE", a.recipe,
                 "A method (rtn, gptq, fp8), transforms and a method (awq, awq+gptq, smoothquant, rotate+gptq), auto "
                 "(gptq with bits and groups, or schemes=, chosen by measurement), or a whole recipe: \"gptq int4 g128 "
                 "sym act=off effort=default\", "
                 "\"gptq w8a8\", \"fp8 block128\"");
  app.add_option("MODEL", a.model, "Checkpoint folder (left out: the embedded demo model)");
  app.add_option("OUT", a.out, "Folder to write (left out: MODEL-RECIPE in the current folder)");
  add_recipe_flags(app, a.words);
  app.add_option(
         "--set", a.set,
         "GLOB=RECIPE: another recipe for some linears; the last match wins (lm_head and model.embed_tokens: by name)")
      ->take_all();
  app.add_option("--keep", a.keep, "GLOB: leave these linears as they are")->take_all();
  app.add_option("--keep-source-grid", a.keep_source,
                 "GLOB: of these linears, leave those as they came that are low-bit in MODEL (FP8, MXFP4 …)")
      ->take_all();
  app.add_option("--drop", a.drop, "GLOB: leave out these tensors, of a vision tower or MTP layers, on purpose")
      ->take_all();
  app.add_option("--lora", a.lora,
                 "Folder of a PEFT LoRA adapter, merged into MODEL's weights as they are read, before anything else")
      ->type_name("ADAPTER");
  auto* engine = app.add_option("--for", a.engine,
                                "Refuse what this engine would not load: " + engine_names() + " (docs/engines.md)");
  app.add_option("--tp", a.tp, "GPUs in tensor parallel that --for checks")->check(in_range(1, 1024))->needs(engine);
  add_calibration_arguments(app, a);
  add_imatrix_arguments(app, a.imatrix);
  add_limit_arguments(app, a.limits);
  auto* minutes = app.add_option("--minutes", a.minutes,
                                 "Of effort=best where it learns the rounding: take fewer steps so that quantizing the "
                                 "blocks takes about N minutes; the best so far is kept. The bytes then depend on the "
                                 "machine's speed");
  minutes->check(above_zero("minutes"));
  app.add_option("--dtype", a.dtype,
                 "Arithmetic of the calibration: float32, bf16, or auto (bf16 where the device multiplies it)")
      ->capture_default_str();
  app.add_option("--shard-size", a.shard_size, "Largest safetensors file of OUT: 5GB, 512MiB …")->capture_default_str();
  app.add_flag(
      "--measure", a.measure,
      "When done, measure the perplexity of MODEL and OUT on the built-in text, for the model card and the report");
  app.add_flag("--force", a.force, "Replace OUT if it exists; the old one stays until the new one is whole");
  auto* resume = app.add_flag("--resume", a.resume, "Go on with a run that was stopped")
                     ->excludes(app.get_option("--write-imatrix"));
  app.add_flag("--restart", a.restart, "Remove what an unfinished run left in OUT.partial and begin anew")
      ->excludes(resume);
  app.add_flag("--allow-rtn", a.allow_rtn, "Permit plain rounding where no factorisation succeeds");
  app.add_flag("--allow-nonfinite", a.allow_nonfinite, "Quantize a model that holds NaN or infinities");
  app.add_flag("--rehash", a.rehash, "Read all of MODEL first, even where a record says that it has not changed");
  app.add_flag("--check-determinism", a.check_determinism,
               "Quantize the first block twice before anything else, and refuse a machine that gives different bytes")
      ->excludes(minutes);
  app.add_flag("--dry-run", a.dry_run, "Print the plan and stop, like `quantize plan`");
  for (const char* o : {"--set", "--keep", "--keep-source-grid", "--drop", "--minutes"})
    app.get_option(o)->group(kRecipeGroup);
  for (const char* o :
       {"--calib", "--calib-field", "--samples", "--seq-len", "--seed", "--dtype", "--imatrix", "--write-imatrix"})
    app.get_option(o)->group(kCalibrationGroup);
  add_common(app, a.common);
  app.add_flag("--verbose", a.common.verbose, "Print a line for every linear as it is coded");
}

// The command that makes the same checkpoint again, without the paths of this machine.
std::string command_of(const CLI::App& app, const QuantizeArgs& a) {
  std::string s = fmt::format("quantize '{}' MODEL OUT", a.recipe);
  std::map<const CLI::Option*, size_t> used;
  for (const CLI::Option* o : app.parse_order()) {
    if (o->get_group() != kRecipeGroup && o->get_group() != kCalibrationGroup) continue;
    if (o->get_name().ends_with("imatrix")) continue;  // a path of this machine
    s += ' ' + o->get_name();
    if (o->get_items_expected_max() > 0 && used[o] < o->results().size())
      s += fmt::format(" '{}'", o->results()[used[o]++]);
  }
  if (!a.lora.empty()) s += " --lora ADAPTER";
  if (!a.imatrix.read.empty()) s += " --imatrix FILE";
  return s;
}

// --set, --keep and --keep-source-grid in the order in which they stand on the command line.
std::vector<Rule> rules_of(const CLI::App& app, const QuantizeArgs& a) {
  std::vector<Rule> rules;
  size_t set = 0, keep = 0, source = 0;
  for (const CLI::Option* o : app.parse_order()) {
    if (o->get_name() == "--keep" && keep < a.keep.size()) {
      rules.push_back({a.keep[keep++], Recipe{.keep = true}});
    } else if (o->get_name() == "--keep-source-grid" && source < a.keep_source.size()) {
      rules.push_back({a.keep_source[source++], Recipe{.source_grid = true}});
    } else if (o->get_name() == "--set" && set < a.set.size()) {
      const std::string& text = a.set[set++];
      const size_t eq = text.find('=');
      if (eq == std::string::npos || eq == 0)
        fail(ErrorKind::usage,
             fmt::format("--set \"{}\": expected GLOB=RECIPE, for example '*.down_proj=int8 g128'", text));
      rules.push_back({text.substr(0, eq), parse_recipe(text.substr(eq + 1))});
    }
  }
  return rules;
}

// RECIPE with the words of the flags on top.
Recipe recipe_of(const QuantizeArgs& a) {
  Recipe r = parse_recipe(a.recipe);
  if (a.words.empty()) return r;
  Recipe flags = parse_recipe(a.words);
  flags.keep = r.keep;
  return overlay(std::move(r), flags);
}

// A RECIPE that is none may be a command that was written wrong.
Recipe recipe_or_command(const CLI::App& app, const QuantizeArgs& a) {
  try {
    return recipe_of(a);
  } catch (const Error&) {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      if (edit_distance(a.recipe, command->get_name()) == 1)
        fail(ErrorKind::usage, fmt::format("\"{}\" is neither a command nor a RECIPE; did you mean `quantize {}`?",
                                           a.recipe, command->get_name()));
    throw;
  }
}

std::filesystem::path out_of(const QuantizeArgs& a, const std::filesystem::path& model, const Recipe& r) {
  // "out/" and "out" are one folder.
  const auto trimmed = [](const std::filesystem::path& p) {
    const std::filesystem::path clean = p.lexically_normal();
    return clean.has_filename() ? clean : clean.parent_path();
  };
  if (!a.out.empty()) return trimmed(a.out);
  return trimmed(model).filename().string() + "-" + r.chain_str();
}

// The linears all at once; then what the machine has too little of.
void refuse_if_any(const QuantPlan& plan, const DiskPlan& disk) {
  if (plan.refusals.empty() && !plan.memory.refusal.empty()) fail(ErrorKind::memory, plan.memory.refusal);
  if (plan.refusals.empty() && !disk.refusal.empty()) fail(ErrorKind::io, disk.refusal);
  if (plan.refusals.empty()) return;
  const std::vector<std::string> reasons = grouped_refusals(plan.refusals);
  const size_t count = plan.refusals.size();
  std::string lines = (count == 1 ? "" : fmt::format("{} linears are ", count)) + "refused; nothing was written";
  if (reasons.size() == 1) fail(ErrorKind::unsupported, fmt::format("{}: {}", lines, reasons[0]));
  for (const std::string& reason : reasons) lines += "\n  " + reason;
  fail(ErrorKind::unsupported,
       lines + "\n  give them another recipe with --set GLOB=RECIPE, or leave them with --keep GLOB");
}

QuantJob job_of(const CLI::App& app, const QuantizeArgs& a, const std::filesystem::path& model, const Recipe& recipe) {
  return {.recipe = a.recipe,
          .command = command_of(app, a),
          .out = out_of(a, model, recipe),
          .seed = a.seed,
          .allow_rtn = a.allow_rtn,
          .allow_nonfinite = a.allow_nonfinite,
          .rehash = a.rehash,
          .force = a.force,
          .resume = a.resume,
          .restart = a.restart,
          .check_determinism = a.check_determinism,
          .shard_bytes = bytes_from(a.shard_size, "--shard-size"),
          .ranks = &the_ranks()};
}

// --resume of a run that is finished: says so, with the report of then.
bool finished_before(const QuantizeArgs& a, const QuantJob& job) {
  if (!finished_already(job)) return false;
  say(a.common, fmt::format("{} is finished; there is nothing to resume\n", job.out.string()));
  write_json(a.common, text_or_empty(place_of(job.out) / "quant_report.json"));
  return true;
}

PlanOptions plan_options(const QuantizeArgs& a, const Checkpoint& c, const Exec& ex, const Recipe& recipe,
                         const QuantJob& job) {
  return {
      .base = recipe,
      .rules = a.ordered,
      .chosen = job.precision ? job.precision->recipes() : std::map<std::string, Recipe>{},
      .tokens = calibration_samples(a) * calibration_length(a, c.spec),
      .seq_len = calibration_length(a, c.spec),
      .dtype = job.dtype,
      .on_gpu = plans_for_gpu(a.limits, ex),
      .limits = memory_limits(a.limits, ex),
      .engine = a.engine,
      .tp = a.tp,
      .minutes = a.minutes,
      .ranks = the_ranks().size(),
  };
}

// Rank 0 alone looks at OUT and claims it; what it refuses ends the others too.
bool nothing_to_do(const QuantizeArgs& a, const std::filesystem::path& model, const QuantJob& job) {
  bool finished = false;
  if (the_ranks().rank() == 0) {
    check_out(model, job);
    finished = finished_before(a, job);
    if (finished) RunFolder::remove_leftovers(partial_of(job.out));
  }
  return value_of_root(the_ranks(), finished);
}

// Of several ranks the first owns OUT, and reads the model before all of them compute.
void claim(const std::filesystem::path& model, const Checkpoint& c, const std::string& adapter, QuantJob& job,
           std::optional<RunFolder>& folder, SourcesAhead* ahead) {
  if (the_ranks().rank() != 0 || folder) return;
  folder.emplace(claim_out(model, job));
  read_model(c, *folder, user_cache_folder(), job, ahead);
  if (!adapter.empty()) job.sources.push_back({.name = "the LoRA adapter", .digest = adapter});
}

QuantPlan plan_for_all(const Checkpoint& c, const PlanOptions& options) {
  QuantPlan plan = make_plan(c, options);
  // All ranks look at as many experts at a time as the one with the least memory.
  plan.memory.experts_at_once = static_cast<int>(least_of_all(the_ranks(), plan.memory.experts_at_once));
  plan.memory.experts_in_waves = true_for_any(the_ranks(), plan.memory.experts_in_waves);
  plan.memory.lanes = static_cast<int>(least_of_all(the_ranks(), plan.memory.lanes));
  return plan;
}

// What cannot be done is refused before `claim_out` claims OUT and reads the model, and what the times make of the
// memory before anything is computed. Of a plan (`claim_out` is null) nothing is refused.
void add_times_or_refuse(const QuantizeArgs& a, Exec& ex, const Checkpoint& c, const PlanOptions& options,
                         const QuantJob& job, QuantPlan& plan, const std::function<void()>& claim_out,
                         const SourcesAhead* ahead) {
  const auto refuse = [&] { refuse_if_any(plan, disk_of(plan, job, a.limits, c)); };
  if (claim_out) {
    refuse();
    if (!the_ranks().alone() || (ahead && !ahead->ready())) warm_up_for(ex, c, options, plan);
    claim_out();  // nothing is measured beside the reading of the model
  }
  if (plan.refusals.empty() && plan.memory.refusal.empty() && the_ranks().alone())
    add_times(ex, c, options, job.out, plan);  // rates are those of one process
  if (claim_out) refuse();                     // what is cheap to store may go to the disk now
}

// In the summary and the report of a run; a plan has neither.
void note_model(const QuantizeArgs& a, const Checkpoint& c, bool plan_only, QuantJob& job) {
  const std::string note = unrounded_inputs_note(c.config.text());
  add_note(job.note, c.rotation);
  if (!plan_only)
    add_note(job.note, note);
  else if (!note.empty())
    say(a.common, "note: " + note + "\n");
}

void make_ready(const Checkpoint& c, const CheckpointFormat& format, QuantJob& job) {
  job.stop_requested = stop_requested;
  job.check_stop = stop_if_requested;
  std::string none;
  if (!format.gguf && !gguf_tokenizer_files(c, &none) && !none.empty())
    add_note(job.note, "OUT gets no tokenizer files: " + none);
  job.seconds_before = seconds_since_start();
}

void run_quantize(const CLI::App& app, QuantizeArgs& a, bool plan_only) {
  if (a.recipe.empty()) fail(ErrorKind::usage, "RECIPE is missing; `quantize --help` shows examples");
  const Recipe recipe = recipe_or_command(app, a);
  a.ordered = rules_of(app, a);
  const CheckpointFormat& format = checkpoint_format(resolve(recipe).format);  // before anything is opened
  if (!a.engine.empty()) engine_rules(a.engine);
  if (a.check_determinism && !the_ranks().alone())
    fail(ErrorKind::usage, "--check-determinism is of one process; start it without the launcher");
  const std::filesystem::path model = model_or_demo(a.common, a.model);
  QuantJob job = job_of(app, a, model, recipe);
  if (!plan_only && nothing_to_do(a, model, job)) return;
  std::string adapter;  // its digest
  const Checkpoint c = as_source_of(open_model(model, recipe, a.lora, a.drop, adapter, job.dropped), format);
  note_model(a, c, plan_only, job);
  const std::unique_ptr<SourcesAhead> ahead = plan_only ? nullptr : read_ahead(a.common, c, job);
  Exec ex = make_exec(a.common);
  require_alike(ex);
  if (!plan_only && !the_ranks().alone()) the_ranks().link_devices(ex);  // which goes on beside the reading
  job.dtype = a.dtype == "auto" ? usual_dtype(plans_for_gpu(a.limits, ex)) : compute_dtype(a.dtype);
  Progress progress(a.common);
  show_progress(a.common, c, ex, progress, job);
  refuse_sampling(a, c, job.dtype, memory_limits(a.limits, ex), plans_for_gpu(a.limits, ex));
  Windows windows;
  std::optional<RunFolder> folder;
  std::future<DrawnText> text;
  const auto draw = [&] {
    KeptSample kept;
    if (folder) kept = {folder->dir() / kSampled, digests_of(job.sources), memory_limits(a.limits, ex)};
    windows = draw_windows(ex, a, c, job.dtype, progress, &job.short_calibration, kept, std::move(text));
  };
  const auto own = [&] { claim(model, c, adapter, job, folder, ahead.get()); };
  if (recipe.chooses_precision()) {
    const auto choose = ready_precision(a.common, c, plan_options(a, c, ex, recipe, job), a.seed, ex, progress);
    if (!plan_only) own();
    draw();
    job.precision = choose(ex, windows, folder ? folder->dir() : std::filesystem::path());
  }
  const PlanOptions options = plan_options(a, c, ex, recipe, job);
  QuantPlan plan = plan_for_all(c, options);
  ImatrixFiles imatrix(a.imatrix, c, plan);
  if (!plan_only && ex.on_cuda() && plan.calibrates() && windows.count == 0) text = draw_text_beside(a, c);
  add_times_or_refuse(a, ex, c, options, job, plan, plan_only ? nullptr : std::function<void()>(own), ahead.get());
  if (plan_only) return print_plan(a.common, c, plan, options, disk_of(plan, job, a.limits, c), job, !ex.on_cuda());
  imatrix.give_to(job);
  if (plan.calibrates() && windows.count == 0) draw();
  say(a.common, expected_line(plan));
  make_ready(c, *plan.format, job);
  const auto scored = a.measure && folder ? std::optional(windows_to_measure(a.common, c)) : std::nullopt;
  if (scored)
    job.measure = [&](const std::filesystem::path& built, QuantReport& report) {
      report.perplexity = measure_perplexity(ex, a.common, *scored, c, built, progress);
    };
  const QuantReport report = run_pipeline(ex, c, plan, windows, job, folder ? &*folder : nullptr);
  imatrix.finish(c.spec, windows);
  progress.update("done", 1);
  say(a.common, summary_of(report));
  if (!a.common.json.empty()) write_json(a.common, to_json(report));
}

}  // namespace

void add_quantize_commands(CLI::App& app) {
  const auto args = std::make_shared<QuantizeArgs>();
  const auto plan_args = std::make_shared<QuantizeArgs>();
  add_arguments(app, *args);
  CLI::App* plan =
      app.add_subcommand("plan", "Print what would be done to every linear, and what is refused; write nothing");
  add_arguments(*plan, *plan_args);
  app.add_subcommand("list", "Print the methods, formats, packings and architectures of this version")
      ->callback(print_list);
  add_status_command(app);
  add_advise_command(app);
  plan->callback([plan, plan_args] { run_quantize(*plan, *plan_args, true); });
  app.callback([&app, args] {
    if (app.get_subcommands().empty()) run_quantize(app, *args, args->dry_run);
  });
}

}  // namespace fewbit::cli
