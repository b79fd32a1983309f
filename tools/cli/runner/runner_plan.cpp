// `runner plan MODEL|PRESET --device NAME`: what a model takes and can reach on a GPU that need not be here.
#include <filesystem>

#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/model/hub_cache.h"
#include "src/model/synth/synth.h"
#include "src/quant/advice/served_recipe.h"
#include "tools/cli/results.h"
#include "tools/cli/runner/plan_args.h"
#include "tools/cli/runner/runner_commands.h"
#include "tools/cli/table.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

namespace fs = std::filesystem;

// A checkpoint where there is one of that name, else a preset of `convert synth`, of which no weight exists.
Checkpoint opened(const Common& common, const std::string& model) {
  std::error_code ignored;
  std::vector<std::string> presets;
  for (const SynthPreset& p : synth_presets()) {
    presets.emplace_back(p.name);
    if (p.name == model && !fs::exists(model, ignored)) return shape_only({.preset = model});
  }
  if (!model.empty() && model.find('/') == std::string::npos && model.find(':') == std::string::npos &&
      !fs::exists(model, ignored))
    fail(ErrorKind::usage, unknown_name("MODEL (no such folder, and as a preset of convert synth)", model, presets));
  return Checkpoint::open(model_or_demo(common, model));
}

std::vector<DevicePlan> plans_of(const PlanArgs& a, const ServedModel& m) {
  std::vector<DevicePlan> plans;
  for (const std::string& device : a.devices) {
    ServingJob job{.gpu = &gpu_model(device, "--device"),
                   .context = a.context > 0 ? a.context : std::min<int64_t>(8192, m.checkpoint->spec.max_positions),
                   .concurrency = a.concurrency,
                   .tp = a.tp,
                   .pp = a.pp,
                   .kv_cache = kv_type_from(a.kv_cache),
                   .head = head_type_from(a.head),
                   .price = a.price};
    job.prompt = a.prompt > 0 ? a.prompt : std::min<int64_t>(job.context, 2048);
    plans.push_back({job, plan_serving(m, job)});
  }
  return plans;
}

void run_plan(const PlanArgs& a) {
  Common common;
  common.json = a.json;
  for (const std::string& device : a.devices) gpu_model(device, "--device");
  if (!a.measured.empty() && a.devices.size() > 1)
    fail(ErrorKind::usage, "--measured: a file is of one GPU; give --device one name");
  Checkpoint c = opened(common, a.model);
  const std::string model = c.dir.string();
  const ServedModel m = a.recipe.empty() ? served(c) : served_as(c, a.recipe);
  const std::vector<DevicePlan> plans = plans_of(a, m);
  std::optional<Measured> measured;
  if (!a.measured.empty()) measured = measured_steps(a.measured, m, plans.front().job);
  say(common, plans.size() == 1 ? plan_lines(model, a, plans.front()) : plan_table(plans, false));
  if (measured) say(common, measured_table(*measured, false));
  write_text(common, a.markdown, measured ? measured_table(*measured, true) : plan_table(plans, true));
  write_json(common, plan_json(model, a, plans, measured ? &*measured : nullptr));
}

std::string gpu_names() {
  std::vector<std::string> names;
  for (const GpuModel& g : gpu_models()) names.emplace_back(g.name);
  return join(names, ", ");
}

void add_files(CLI::App& plan, PlanArgs& a) {
  plan.add_option("--measured", a.measured,
                  "FILE that `runner bench --json` wrote on such a GPU: its steps over the floors of the same shapes")
      ->check(CLI::ExistingFile);
  plan.add_option("--markdown", a.markdown, "FILE: the table for a page")->check(writable_file());
  plan.add_option("--json", a.json, "Write the same as JSON to FILE, or to standard output with -")
      ->type_name("FILE|-")
      ->check(writable_file());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  const auto a = std::make_shared<PlanArgs>();
  CLI::App* plan = app.add_subcommand(
      "plan", "What a model takes and can reach on a GPU that need not be here: bytes, floors, cost, by arithmetic");
  plan->add_option("MODEL", a->model,
                   "Checkpoint folder, or a preset of `convert synth` (left out: the embedded demo model)");
  plan->add_option("--device", a->devices, "GPU, or several with commas: " + gpu_names())
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  plan->add_option("--recipe", a->recipe, "As what `quantize RECIPE` would make of MODEL: \"gptq int4 g128\"");
  plan->add_option("--context", a->context,
                   "Positions of each sequence at the step that is priced (left out: 8,192, or what the model has)")
      ->check(at_least(1));
  plan->add_option("--concurrency", a->concurrency, "Sequences at once")->check(at_least(1))->capture_default_str();
  plan->add_option("--prompt-tokens", a->prompt, "Tokens of the prompt that is priced (left out: 2,048, or --context)")
      ->check(at_least(1));
  plan->add_option("--tp", a->tp, "GPUs that share every layer")->check(in_range(1, 1024))->capture_default_str();
  plan->add_option("--pp", a->pp, "Stages of layers, a group of --tp GPUs each")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  plan->add_option("--price", a->price, "USD an hour for one GPU: cost per million tokens")->check(number_in(0, 1e6));
  add_kv_cache(*plan, a->kv_cache);
  add_head(*plan, a->head);
  add_files(*plan, *a);
  plan->callback([a] { run_plan(*a); });
}

}  // namespace fewbit::cli
