// `evaluate sweep MODEL --recipe A --recipe B …`: quantizes, compares and tabulates.
#include <fmt/format.h>

#include <algorithm>

#include "src/core/strings.h"
#include "src/quant/pipeline.h"
#include "tools/cli/calibration.h"
#include "tools/cli/report_models.h"

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
  std::string recipe;
  QuantPlan plan;
  QuantJob job;
};

std::string folder_name(std::string recipe) {
  std::replace_if(
      recipe.begin(), recipe.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
  return recipe;
}

// All plans, and all refusals before anything is computed.
std::vector<Run> plan_runs(const SweepArgs& a, const Checkpoint& model, const Exec& ex) {
  std::vector<Run> runs;
  std::string refusals;
  for (const std::string& text : a.recipes) {
    const Recipe recipe = parse_recipe(text);
    if (recipe.chooses_precision())
      fail(ErrorKind::usage,
           fmt::format(
               "\"{}\" measures before it plans; quantize by it and give the result to `evaluate report`",
               text));
    Run& run = runs.emplace_back();
    run.recipe = text;
    run.job = {.recipe = text,
               .out = std::filesystem::path(a.out) / folder_name(text),
               .seed = a.calibration.seed,
               .force = a.force};
    run.job.dtype = ex.on_cuda() ? DType::bf16 : DType::f32;
    run.plan =
        make_plan(model, {.base = recipe,
                          .tokens = a.calibration.samples * calibration_length(a.calibration, model.spec),
                          .dtype = run.job.dtype,
                          .on_gpu = ex.on_cuda()});
    for (const Refusal& r : run.plan.refusals)
      refusals += fmt::format("\n  {}: {}: {}", text, r.name, r.reason);
  }
  if (!refusals.empty()) fail(ErrorKind::unsupported, "linears are refused; nothing was written" + refusals);
  return runs;
}

void make_folder(const std::string& out) {
  std::error_code error;
  std::filesystem::create_directory(out, error);
  if (error) fail(ErrorKind::io, fmt::format("{}: cannot create: {}", out, error.message()));
}

// The calibration text is tokenized and drawn once for all recipes that need any.
Windows draw_once(Exec& ex, const SweepArgs& a, const Checkpoint& model, std::vector<Run>& runs,
                  Progress& progress) {
  if (std::all_of(runs.begin(), runs.end(), [](const Run& r) { return r.plan.needs == Needs::nothing; }))
    return {};
  std::string note;
  Windows windows = draw_windows(ex, a.calibration, model, runs.front().job.dtype, progress, &note);
  for (Run& r : runs)
    if (r.plan.needs != Needs::nothing) r.job.note = note;
  if (!note.empty()) say(a.common, note + "\n");
  return windows;
}

void run_sweep(SweepArgs a) {
  a.load();  // refuses unknown names before anything is opened
  check_benches(a.files);
  const Checkpoint model = Checkpoint::open(a.base);
  Baseline base(a, model);
  if (a.out.empty()) a.out = std::filesystem::path(a.base).lexically_normal().filename().string() + "-sweep";
  Exec ex = make_exec(a.common);
  std::vector<Run> runs = plan_runs(a, model, ex);
  make_folder(a.out);
  for (const Run& run : runs) check_out(run.job);
  Progress progress(a.common);
  const Windows calibration = draw_once(ex, a, model, runs, progress);
  base.load(ex, progress);
  Report report;
  std::vector<std::string> paths;
  for (Run& run : runs) {
    run.job.progress = [&](const std::string& phase, double f) {
      progress.update(run.recipe + ": " + phase, f);
    };
    run_pipeline(ex, model, run.plan, run.plan.needs == Needs::nothing ? Windows{} : calibration, run.job);
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
  CLI::App* command =
      app.add_subcommand("sweep", "Quantize by several recipes, compare them with the model, tabulate");
  command->add_option("MODEL", a->base, "The model")->required();
  command->add_option("--recipe", a->recipes, "A recipe of `quantize`; repeat it for each")
      ->required()
      ->take_all();
  command->add_option("--out", a->out,
                      "Folder for the checkpoints (left out: MODEL-sweep in the current folder)");
  command->add_flag("--force", a->force, "Replace checkpoints that exist there");
  add_calibration_arguments(*command, a->calibration);
  add_report_arguments(*command, a->files);
  add_data_arguments(*command, *a);
  command->callback([a] { run_sweep(*a); });
}

}  // namespace fewbit::cli
