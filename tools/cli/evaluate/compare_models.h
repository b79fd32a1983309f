#pragma once
// Comparing checkpoints with a baseline: what `compare`, `report` and `sweep` have in common.
#include <optional>

#include "tools/cli/evaluate/evaluate_data.h"

namespace fewbit::cli {

struct CompareArgs : DataArgs {
  std::string base, base_cache;
  std::vector<std::string> models;
  int64_t worst = 10;
  bool noise_floor = false, layers = false;
};

// The baseline, opened: its windows, and its logits from a resident model or from a cache (written first if
// need be).
class Baseline {
 public:
  // Refuses windows that do not fit before anything is loaded.
  Baseline(const CompareArgs& a, const Checkpoint& base);
  // Loads the model, or opens the cache.
  void load(Exec& ex, Progress& progress);
  const Checkpoint& checkpoint() const { return base_; }
  const ScoredWindows& windows() const { return windows_; }
  const LogitSource& logits() const { return logits_; }

 private:
  const CompareArgs& args_;
  const Checkpoint& base_;
  ScoredWindows windows_;
  std::optional<Runner> runner_;
  LogitSource logits_;
};

// Opens MODEL and refuses another vocabulary, or a tokenizer that cuts the text into other tokens than
// `base`'s.
Checkpoint open_for_comparison(const CompareArgs& a, const Baseline& base, const std::string& model);

DivergenceResult compare_with(Exec&, const CompareArgs&, const Baseline&, const Checkpoint& model, Progress&);

}  // namespace fewbit::cli
