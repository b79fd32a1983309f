// `evaluate tasks [MODEL] FILE`.
#include "src/eval/tasks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/text/with_error.h"
#include "tools/cli/evaluate/evaluate_data.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TasksArgs {
  Common common;
  std::vector<std::string> paths;  // [MODEL] FILE
  std::string baseline, dtype = "bf16";
  int64_t few_shot = 0, batch_tokens = 0;
  const std::string& file() const { return paths.back(); }
  std::string model() const { return paths.size() > 1 ? paths.front() : ""; }
};

std::vector<TaskAnswer> answers_of(Exec& ex, const TasksArgs& a, const Checkpoint& c,
                                   const std::vector<TaskItem>& items, Progress& progress) {
  const Tokenizer tokenizer = Tokenizer::open(c.dir);
  Runner runner(ex, c, {.dtype = compute_dtype(a.dtype)});
  const int64_t batch = a.batch_tokens > 0 ? a.batch_tokens : (ex.on_cuda() ? 32768 : 8192);
  return answer_tasks(runner, tokenizer, items,
                      {.few_shot = a.few_shot, .batch_tokens = batch, .progress = report_to(progress, "answering")});
}

Json accuracy_json(const std::vector<TaskItem>& items, const std::vector<TaskAnswer>& answers) {
  const Accuracy raw = accuracy(items, answers, false), normalised = accuracy(items, answers, true);
  return {{"accuracy", raw.value},
          {"accuracy_stderr", raw.stderr_},
          {"accuracy_normalised", normalised.value},
          {"accuracy_normalised_stderr", normalised.stderr_}};
}

Json flips_json(const Flips& f) {
  return {
      {"lost", f.lost}, {"won", f.won}, {"changed", f.changed}, {"difference", f.difference}, {"stderr", f.stderr_}};
}

std::string accuracy_lines(const std::string& name, const std::vector<TaskItem>& items,
                           const std::vector<TaskAnswer>& answers) {
  const Accuracy raw = accuracy(items, answers, false), normalised = accuracy(items, answers, true);
  return fmt::format("{:<32} accuracy {} %, length-normalised {} %  ({} items)\n", name,
                     with_error(100 * raw.value, 100 * raw.stderr_, 2),
                     with_error(100 * normalised.value, 100 * normalised.stderr_, 2), items.size());
}

std::string flip_line(const char* kind, const Flips& f) {
  return fmt::format("  {:<18} {} answers changed: {} right to wrong, {} wrong to right; accuracy {}{} % (paired)\n",
                     kind, f.changed, f.lost, f.won, f.difference < 0 ? "" : "+",
                     with_error(100 * f.difference, 100 * f.stderr_, 2));
}

void run_tasks(const TasksArgs& a) {
  compute_dtype(a.dtype);
  const std::vector<TaskItem> items = read_tasks(a.file());
  const Checkpoint c = Checkpoint::open(model_or_demo(a.common, a.model()));
  std::optional<Checkpoint> baseline;
  if (!a.baseline.empty()) baseline = Checkpoint::open(a.baseline);
  Exec ex = make_exec(a.common);
  Progress progress(a.common);
  const std::vector<TaskAnswer> answers = answers_of(ex, a, c, items, progress);
  Json j = {{"model", c.dir.string()}, {"tasks", a.file()}, {"items", items.size()},
            {"few_shot", a.few_shot},  {"dtype", a.dtype},  {"device", ex.device_name()}};
  j.update(accuracy_json(items, answers));
  std::string text = accuracy_lines(c.dir.string(), items, answers);
  if (baseline) {
    const std::vector<TaskAnswer> base = answers_of(ex, a, *baseline, items, progress);
    const Flips raw = flips(items, base, answers, false), normalised = flips(items, base, answers, true);
    j["baseline"] = {{"model", a.baseline}};
    j["baseline"].update(accuracy_json(items, base));
    j["flips"] = flips_json(raw);
    j["flips_normalised"] = flips_json(normalised);
    text +=
        accuracy_lines(a.baseline, items, base) + flip_line("raw", raw) + flip_line("length-normalised", normalised);
  }
  j["answers"] = Json::array();
  for (size_t i = 0; i < items.size(); ++i)
    j["answers"].push_back({{"gold", items[i].gold},
                            {"raw", answers[i].raw},
                            {"normalised", answers[i].normalised},
                            {"logprob", answers[i].logprob}});
  progress.update("done", 1);
  say(a.common, text);
  write_json(a.common, j.dump(1) + "\n");
}

}  // namespace

void add_tasks_command(CLI::App& app) {
  const auto a = std::make_shared<TasksArgs>();
  CLI::App* command =
      app.add_subcommand("tasks", "Multiple choice by log-likelihood: accuracy, and flips against a baseline");
  command
      ->add_option("MODEL_FILE", a->paths,
                   "[MODEL] FILE: a checkpoint (left out: the embedded demo model), a .jsonl of tasks")
      ->required()
      ->expected(1, 2)
      ->type_name("[MODEL] FILE");
  command->add_option("--baseline", a->baseline, "Also answer with this checkpoint and count the flips");
  command
      ->add_option("--few-shot", a->few_shot,
                   "Solved examples in front of every item, taken from the items that follow it")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--dtype", a->dtype, "Arithmetic: bf16 or float32")->capture_default_str();
  command->add_option("--batch-tokens", a->batch_tokens, "Tokens per forward pass")->check(at_least(1));
  add_common(*command, a->common);
  command->callback([a] { run_tasks(*a); });
}

}  // namespace fewbit::cli
