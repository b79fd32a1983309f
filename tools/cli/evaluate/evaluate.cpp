// The commands of `evaluate`; each has its own file evaluate_NAME.cpp.
#include "tools/cli/evaluate/evaluate_data.h"

namespace fewbit::cli {

void add_certify_command(CLI::App& app);

void add_evaluate_commands(CLI::App& app) {
  app.require_subcommand(1);
  add_perplexity_command(app);
  add_compare_command(app);
  add_tasks_command(app);
  add_report_command(app);
  add_sweep_command(app);
  add_verify_command(app);
  add_certify_command(app);
}

}  // namespace fewbit::cli
