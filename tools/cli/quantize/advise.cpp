#include "tools/cli/quantize/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/quant/advice/advise.h"
#include "src/quant/plan/engines.h"
#include "tools/cli/options.h"
#include "tools/cli/results.h"
#include "tools/cli/table.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

struct AdviseArgs {
  std::string model, json, gpu, engine = "vllm", goal = "latency";
  int64_t context = 8192;
};

// How an engine is started on OUT.
struct Serve {
  std::string_view engine, command;
};
constexpr Serve kServe[] = {
    {"vllm", "vllm serve OUT"},
    {"sglang", "python -m sglang.launch_server --model-path OUT"},
    {"tensorrt-llm", "trtllm-serve OUT"},
    {"transformers", "AutoModelForCausalLM.from_pretrained(\"OUT\", device_map=\"cuda\")"},
    {"llama.cpp", "llama-server -m OUT/model.gguf -ngl 99"},
    {"fewbit", "runner generate OUT --prompt …"},
};

std::string_view serve_command(std::string_view engine) {
  for (const Serve& s : kServe)
    if (s.engine == engine) return s.command;
  return "";
}

std::string command_of(const Advice& a) {
  return a.recipe.empty() ? "MODEL as it is" : fmt::format("quantize '{}' MODEL OUT", a.recipe);
}

std::string lines_of(const AdviceTable& t, const AdviceJob& job) {
  std::vector<std::vector<std::string>> rows = {
      {"recipe", "bits", "checkpoint", "with cache", "fits", "step, at least", "lab gap", "on this GPU"}};
  for (const Advice& a : t.ranked)
    rows.push_back({a.recipe.empty() ? "(as it is)" : a.recipe, fmt::format("{:.2f}", a.bits_per_weight),
                    human_bytes(a.checkpoint_bytes), human_bytes(a.checkpoint_bytes + a.cache_bytes),
                    a.fits ? "yes" : "no", fmt::format("{:.2f} ms", a.step_ms), fmt::format("{:+.2f} %", a.lab_gap),
                    a.note});
  std::string s = fmt::format("{} ({:g} GiB, {:g} GB/s, compute capability {}.{}), {}, by {}\n", job.gpu->title,
                              job.gpu->memory_gib, job.gpu->read_gbs, job.gpu->capability / 10,
                              job.gpu->capability % 10, job.engine, name_of(job.goal));
  s += table(rows, false, 1);
  for (const std::string& r : t.refused) s += fmt::format("not for it: {}\n", r);
  s += fmt::format(
      "cache: keys and values of {} positions in bf16; step: weights and cache read once at the data "
      "sheet's rate, which no engine undercuts at batch 1; lab gap: perplexity over bf16's, measured on a "
      "model of 9.4 M parameters, less on larger ones (docs/guide.md)\n",
      job.context);
  const Advice& best = t.ranked.front();
  if (!best.fits)
    return s +
           "nothing fits this GPU: fewer positions (--context), several GPUs (quantize plan … --tp N), or a "
           "smaller model\n";
  return s + fmt::format("best: {}\nthen: {}\n", command_of(best), serve_command(job.engine));
}

std::string json_of(const AdviceTable& t, const AdviceJob& job, const std::string& model) {
  Json j = {{"model", model},
            {"gpu", job.gpu->name},
            {"memory_bytes", static_cast<int64_t>(job.gpu->memory_gib * 0x1p30)},
            {"read_gb_per_s", job.gpu->read_gbs},
            {"compute_capability", job.gpu->capability},
            {"source", job.gpu->source},
            {"engine", job.engine},
            {"goal", name_of(job.goal)},
            {"context", job.context},
            {"ranked", Json::array()},
            {"refused", t.refused},
            {"serve", serve_command(job.engine)}};
  for (const Advice& a : t.ranked)
    j["ranked"].push_back({{"recipe", a.recipe},
                           {"command", command_of(a)},
                           {"bits_per_weight", a.bits_per_weight},
                           {"checkpoint_bytes", a.checkpoint_bytes},
                           {"cache_bytes", a.cache_bytes},
                           {"fits", a.fits},
                           {"least_step_ms", a.step_ms},
                           {"lab_gap_percent", a.lab_gap},
                           {"note", a.note}});
  return j.dump(1) + "\n";
}

std::string gpu_names() {
  std::vector<std::string> names;
  for (const GpuModel& g : gpu_models()) names.emplace_back(g.name);
  return join(names, ", ");
}

void run_advise(const AdviseArgs& a) {
  AdviceJob job{.gpu = &gpu_model(a.gpu), .engine = a.engine, .goal = advice_goal_from(a.goal)};
  if (a.engine != "fewbit") engine_rules(a.engine);
  Common common;
  common.json = a.json;
  const Checkpoint c = Checkpoint::open(model_or_demo(common, a.model));
  job.context = std::min(a.context, c.spec.max_positions);
  const AdviceTable t = advise(c, job);
  say(common, lines_of(t, job));
  write_json(common, json_of(t, job, c.dir.string()));
}

}  // namespace

void add_advise_command(CLI::App& app) {
  const auto a = std::make_shared<AdviseArgs>();
  CLI::App* advise = app.add_subcommand(
      "advise", "Rank the recipes for a GPU and an engine by the plan's figures; computes and writes nothing");
  advise->add_option("MODEL", a->model, "Checkpoint folder (left out: the embedded demo model)");
  advise->add_option("--gpu", a->gpu, "GPU that will serve: " + gpu_names())->required();
  advise
      ->add_option("--engine,--for", a->engine,
                   "Engine that will serve: vllm, sglang, tensorrt-llm, transformers, llama.cpp, or fewbit (`runner`)")
      ->capture_default_str();
  advise->add_option("--goal", a->goal, "What to rank by: memory, latency (a step at batch 1) or quality")
      ->capture_default_str();
  advise->add_option("--context", a->context, "Positions of the sequence whose keys and values must fit")
      ->check(at_least(1))
      ->capture_default_str();
  advise->add_option("--json", a->json, "Write the same as JSON to FILE, or to standard output with -")
      ->type_name("FILE|-")
      ->check(writable_file());
  advise->callback([a] { run_advise(*a); });
}

}  // namespace fewbit::cli
