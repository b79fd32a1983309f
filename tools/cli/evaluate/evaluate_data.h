#pragma once
// What the commands of `evaluate` share: the data that is scored, and how.
#include <optional>

#include "src/eval/divergence.h"
#include "src/eval/perplexity.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

struct DataArgs {
  Common common;
  std::string data = "builtin", dtype = "bf16", protocol = "plain", chat_template, kv_cache = "bf16", head = "stored",
              acts = "bf16";
  int64_t context = 0, stride = 0, max_windows = 0, batch_tokens = 0;
  // Error{usage} for a --dtype, --kv-cache, --head or --acts that does not exist.
  LoadOptions load() const {
    return {.dtype = compute_dtype(dtype),
            .kv_cache = kv_type_from(kv_cache),
            .head = head_type_from(head),
            .acts = acts_type_from(acts)};
  }
  int64_t cache_bytes_per_token(const Checkpoint&) const;  // position_bytes(): of one sequence, in all layers
  int64_t tokens_per_pass(const Exec& ex) const {
    return batch_tokens > 0 ? batch_tokens : (ex.on_cuda() ? 32768 : 8192);
  }
};
void add_data_arguments(CLI::App& app, DataArgs& a);

// The windows to score with a checkpoint's tokenizer; refused where they exceed the model's positions.
ScoredWindows load_windows(const DataArgs& a, const Checkpoint& c);
// The checkpoint's tokenizer, or nothing where it has none.
std::optional<Tokenizer> tokenizer_of(const Checkpoint& c);

// Reports `what` with the share that is done.
std::function<void(int64_t, int64_t)> report_to(Progress& progress, std::string what);

// Each registers one command.
void add_perplexity_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_tasks_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_sweep_command(CLI::App& app);
void add_verify_command(CLI::App& app);

}  // namespace fewbit::cli
