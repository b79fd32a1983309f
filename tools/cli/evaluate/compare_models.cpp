#include "tools/cli/evaluate/compare_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/eval/exact_inputs.h"

namespace fewbit::cli {
namespace {

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;
  const bool has_a = std::filesystem::exists(a, ignored), has_b = std::filesystem::exists(b, ignored);
  if (!has_a || !has_b) return has_a == has_b;
  return read_text(a) == read_text(b);
}

void check_tokenizer(const CompareArgs& a, const Baseline& base, const Checkpoint& model) {
  const std::filesystem::path theirs = base.checkpoint().dir / "tokenizer.json", ours = model.dir / "tokenizer.json";
  if (same_file(theirs, ours)) return;
  const std::vector<int32_t>& expected = base.windows().windows.ids;
  const std::vector<int32_t> found = load_windows(a, model).windows.ids;
  if (found == expected) return;
  const auto [e, f] = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  const auto shown = [](auto it, auto end) { return it == end ? std::string("nothing") : std::to_string(*it); };
  fail(ErrorKind::usage, fmt::format("{} and {} have different tokenizers: token {} of the text is {} for "
                                     "one and {} for the other; they "
                                     "cannot be compared",
                                     base.checkpoint().dir.string(), model.dir.string(), e - expected.begin(),
                                     shown(e, expected.end()), shown(f, found.end())));
}

}  // namespace

Baseline::Baseline(const CompareArgs& a, const Checkpoint& base)
    : args_(a), base_(base), windows_(load_windows(a, base)) {}

void Baseline::load(Exec& ex, Progress& progress) {
  const LoadOptions load = with_exact_inputs({.dtype = args_.load().dtype}, base_);
  const std::string line = exact_inputs_line(load);
  if (!line.empty()) say(args_.common, "note: " + base_.dir.string() + ": " + line + "\n");
  if (args_.base_cache.empty()) {
    logits_ = logits_from(ex, runner_.emplace(ex, base_, load), windows_);
    return;
  }
  const CacheKey key{fingerprint(base_), args_.dtype + (line.empty() ? "" : ", inputs unrounded"),
                     std::string(name_of(windows_.protocol))};
  std::error_code ignored;
  if (!std::filesystem::exists(args_.base_cache, ignored)) {
    Runner runner(ex, base_, load);
    write_logit_cache(ex, args_.base_cache, key, logits_from(ex, runner, windows_), windows_, args_.tokens_per_pass(ex),
                      report_to(progress, "caching the baseline"));
  }
  logits_ = logits_from_cache(ex, args_.base_cache, key, windows_);
}

Checkpoint open_for_comparison(const CompareArgs& a, const Baseline& base, const std::string& path) {
  Checkpoint model = Checkpoint::open(path);
  if (model.spec.vocab != base.checkpoint().spec.vocab)
    fail(ErrorKind::usage, fmt::format("{} has a vocabulary of {} and {} one of {}; they cannot be compared", path,
                                       model.spec.vocab, base.checkpoint().dir.string(), base.checkpoint().spec.vocab));
  if (base.windows().windows.length > model.spec.max_positions)
    fail(ErrorKind::usage, fmt::format("windows of {} tokens exceed the {} positions of {}",
                                       base.windows().windows.length, model.spec.max_positions, path));
  check_tokenizer(a, base, model);
  check_cache_type(model.spec, a.load().kv_cache);
  return model;
}

DivergenceResult compare_with(Exec& ex, const CompareArgs& a, const Baseline& base, const Checkpoint& model,
                              Progress& progress) {
  const LoadOptions load = with_exact_inputs(a.load(), model);
  Runner runner(ex, model, load);
  std::vector<std::string> notes = runner.notes();
  for (std::string line : {exact_inputs_line(load), long_rope_line(model.spec, base.windows().windows.length)})
    if (!line.empty()) notes.push_back(std::move(line));
  for (const std::string& note : notes) say(a.common, "note: " + model.dir.string() + ": " + note + "\n");
  return divergence(ex, base.logits(), logits_from(ex, runner, base.windows()), base.windows(),
                    {.batch_tokens = a.tokens_per_pass(ex),
                     .worst = a.worst,
                     .progress = report_to(progress, "comparing " + model.dir.string())});
}

}  // namespace fewbit::cli
