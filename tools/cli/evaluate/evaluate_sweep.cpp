// `evaluate sweep MODEL --recipe A --recipe B …`: quantizes, compares and tabulates.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kernels/cpu/arithmetic.h"
#include "src/core/strings.h"
#include "src/quant/journal/read_model.h"
#include "src/quant/loop/pipeline.h"
#include "tools/cli/evaluate/report_models.h"
#include "tools/cli/quantize/calibration.h"
#include "tools/cli/quantize/open_model.h"

namespace fewbit::cli {
namespace {

struct SweepArgs : CompareArgs {
  ReportFiles files;
  CalibrationArgs calibration;
  std::vector<std::string> recipes;
  std::string out;
  bool force = false;
};

struct Run {
  std::string text;
  Recipe recipe;
  QuantPlan plan;
  QuantJob job;
  std::optional<Checkpoint> turned{};  // the model, where the recipe turns it
  std::optional<RunFolder> folder{};   // of every run from the start: nothing is refused late
};

const Checkpoint& model_of(const Run& run, const Checkpoint& model) { return run.turned ? *run.turned : model; }

std::string folder_name(std::string recipe) {
  std::replace_if(
      recipe.begin(), recipe.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
  return recipe;
}

std::vector<Run> runs_of(const SweepArgs& a, const Exec& ex) {
  std::vector<Run> runs;
  for (const std::string& text : a.recipes) {
    const std::filesystem::path out = std::filesystem::path(a.out) / folder_name(text);
    for (const Run& other : runs)
      if (other.job.out == out)
        fail(ErrorKind::usage, fmt::format("--recipe \"{}\" and \"{}\" would both be written to {}; give one of them",
                                           other.text, text, out.string()));
    Run& run = runs.emplace_back();
    run.text = text;
    run.recipe = parse_recipe(text);
    if (run.recipe.rotates) run.turned = turned_for(Checkpoint::open(a.base), run.recipe);
    run.job = {.recipe = text, .out = out, .seed = a.calibration.seed, .force = a.force, .restart = a.force};
    run.job.dtype = usual_dtype(ex.on_cuda());
  }
  return runs;
}

// Plans the runs that choose their precision by measuring, or the others; all refusals together, before anything is
// quantized.
void plan_runs(const SweepArgs& a, const Checkpoint& model, const Exec& ex, bool measured, std::vector<Run>& runs) {
  std::string refusals;
  for (Run& run : runs) {
    // What cannot be chosen is refused before anything is drawn.
    if (run.recipe.chooses_precision() && !measured) precision_choices(model_of(run, model), {.base = run.recipe});
    if (run.recipe.chooses_precision() != measured) continue;
    const int64_t length = calibration_length(a.calibration, model.spec);
    run.plan = make_plan(model_of(run, model),
                         {.base = run.recipe,
                          .chosen = run.job.precision ? run.job.precision->recipes() : std::map<std::string, Recipe>{},
                          .tokens = calibration_samples(a.calibration) * length,
                          .seq_len = length,
                          .dtype = run.job.dtype,
                          .on_gpu = ex.on_cuda()});
    for (const Refusal& r : run.plan.refusals) refusals += fmt::format("\n  {}: {}: {}", run.text, r.name, r.reason);
  }
  if (!refusals.empty()) fail(ErrorKind::unsupported, "linears are refused; nothing was written" + refusals);
}

void make_folder(const std::string& out) {
  std::error_code error;
  std::filesystem::create_directory(out, error);
  if (error) fail(ErrorKind::io, fmt::format("{}: cannot create: {}", out, error.message()));
}

bool calibrates(const Run& run) { return run.recipe.chooses_precision() || run.plan.calibrates(); }

// The calibration text is tokenized and drawn once for all recipes that need any.
Windows draw_once(Exec& ex, const SweepArgs& a, const Checkpoint& model, std::vector<Run>& runs, Progress& progress) {
  if (std::none_of(runs.begin(), runs.end(), calibrates)) return {};
  std::string note;
  Windows windows = draw_windows(ex, a.calibration, model, runs.front().job.dtype, progress, &note);
  for (Run& r : runs)
    if (calibrates(r)) r.job.note = note;
  if (!note.empty()) say(a.common, note + "\n");
  return windows;
}

void choose_precisions(Exec& ex, const SweepArgs& a, const Checkpoint& model, const Windows& windows,
                       std::vector<Run>& runs, Progress& progress) {
  for (Run& run : runs) {
    if (!run.recipe.chooses_precision()) continue;
    const PrecisionJob job{.base = run.recipe, .dtype = run.job.dtype, .seed = run.job.seed, .progress = [&](double f) {
                             progress.update(run.text + ": measuring the sensitivity", f);
                           }};
    run.job.precision =
        choose_precision(ex, model_of(run, model), windows, job, precision_choices(model_of(run, model), job));
    say(a.common, run.job.precision->summary() + "\n");
  }
}

void run_sweep(SweepArgs a) {
  a.load();  // refuses unknown names before anything is opened
  check_benches(a.files);
  const Checkpoint model = Checkpoint::open(a.base);
  Baseline base(a, model);
  if (a.out.empty()) a.out = std::filesystem::path(a.base).lexically_normal().filename().string() + "-sweep";
  Exec ex = make_exec(a.common);
  std::vector<Run> runs = runs_of(a, ex);
  plan_runs(a, model, ex, false, runs);
  make_folder(a.out);
  for (Run& run : runs) run.folder.emplace(claim_out(a.base, run.job));
  Progress progress(a.common);
  for (Run& run : runs) {  // the first one's record serves the others, where records can be kept
    run.job.progress = [&](const std::string& phase, double f) { progress.update(run.text + ": " + phase, f); };
    read_model(model, *run.folder, user_cache_folder(), run.job);
  }
  const Windows calibration = draw_once(ex, a, model, runs, progress);
  choose_precisions(ex, a, model, calibration, runs, progress);
  plan_runs(a, model, ex, true, runs);
  base.load(ex, progress);
  Report report;
  std::vector<std::string> paths;
  for (Run& run : runs) {
    run_pipeline(ex, model_of(run, model), run.plan, calibrates(run) ? calibration : Windows{}, run.job, &*run.folder);
    const Checkpoint out = open_for_comparison(a, base, run.job.out.string());
    const DivergenceResult r = compare_with(ex, a, base, out, progress);
    if (report.models.empty()) report = begin_report(a, a.files, base, ex, r);
    report.models.push_back(report_model(out, r));
    paths.push_back(run.job.out.string());
  }
  add_latencies(report, a.files, paths);
  progress.update("done", 1);
  write_report(a, a.files, report);
}

}  // namespace

void add_sweep_command(CLI::App& app) {
  const auto a = std::make_shared<SweepArgs>();
  CLI::App* command = app.add_subcommand("sweep", "Quantize by several recipes, compare them with the model, tabulate");
  command->add_option("MODEL", a->base, "The model")->required();
  command->add_option("--recipe", a->recipes, "A recipe of `quantize`; repeat it for each")->required()->take_all();
  command->add_option("--out", a->out, "Folder for the checkpoints (left out: MODEL-sweep in the current folder)");
  command->add_flag("--force", a->force, "Replace checkpoints that exist there, and begin unfinished ones anew");
  add_calibration_arguments(*command, a->calibration);
  add_report_arguments(*command, a->files);
  add_data_arguments(*command, *a);
  command->callback([a] { run_sweep(*a); });
}

}  // namespace fewbit::cli
