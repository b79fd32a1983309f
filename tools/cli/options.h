#pragma once
// What commands share: device, threads, JSON output, the model argument, and the progress bar.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/exec/exec.h"
#include "src/core/dtype.h"
#include "src/model/checkpoint.h"
#include "src/run/rank_sums.h"

namespace fewbit::cli {

struct Common {
  std::string device = "auto";
  std::string json;  // "" = none, "-" = standard output
  int threads = 0;
  bool quiet = false, verbose = false;
  bool json_to_stdout() const { return json == "-"; }
};
void add_common(CLI::App& app, Common& common);
// Of an option: a whole number that is not below `least`; the message names what was found.
CLI::Validator at_least(int64_t least);
// As many threads as --threads says, else a rank's share of the machine's, else all. Before their first use.
void use_threads(const Common&);
// Sets the threads and makes the Exec, on several ranks those of this one. Error{device} where a GPU was asked for and
// none answers.
Exec make_exec(const Common& common);

// Writes `text` to the --json target, if any. Of several ranks only rank 0 writes and says.
void write_json(const Common& common, const std::string& text);
// Prints for a person: to standard output, or to standard error when JSON goes to standard output.
void say(const Common& common, const std::string& text);

// The folder of MODEL, or the embedded demo model when it was left out (and says so).
std::filesystem::path model_or_demo(const Common& common, const std::string& model);
// "5GB", "512 MiB", "100000": units of 1000 (kB, MB, GB, TB) and of 1024 (KiB, MiB, GiB, TiB), any case. Error{usage}
// naming the flag for anything else, and for less than one byte.
int64_t bytes_from(std::string_view text, std::string_view flag);
DType compute_dtype(const std::string& name);  // "float32" | "bf16"
std::string display(DType dtype);              // the same words back
// --kv-cache; `name` is checked by kv_type_from().
void add_kv_cache(CLI::App& app, std::string& name);
// --head; `name` is checked by head_type_from().
void add_head(CLI::App& app, std::string& name);
// --acts; `name` is checked by acts_type_from().
void add_acts(CLI::App& app, std::string& name);
// "int4 head", "int4 head, int8 inputs" of the names of both.
std::string head_and_acts(const std::string& head, const std::string& acts);

// --tp; what was given is checked by ranks_for().
CLI::Option* add_tp(CLI::App& app, int& tp);
// The ranks that share a model by --tp; null of one process. Error{usage} where they are not as many as --tp says. To
// be asked before anything else.
std::unique_ptr<RankSums> ranks_for(int tp);

// A bar with ETA on a terminal; silent in a pipe.
class Progress {
 public:
  explicit Progress(const Common& common);
  ~Progress();
  // `detail` stands behind the bar, and may change while the phase goes on.
  void update(const std::string& phase, double fraction,
              const std::string& detail = "");  // also stop_if_requested(), where something is left to do
  void clear();                                 // before something else is printed; the next update draws again

 private:
  bool enabled_;
  std::string phase_;
  std::chrono::steady_clock::time_point start_, drawn_;
  bool dirty_ = false;
};

// Set by SIGINT and SIGTERM once install_stop_handler() was called; a second signal ends the process at once.
void install_stop_handler();
bool stop_requested();
// Error{stopped} with the command to start again; whoever keeps something says that instead. Of several ranks never.
void stop_if_requested();

// Each registers its commands on the program's app.
void add_quantize_commands(CLI::App& app);
void add_evaluate_commands(CLI::App& app);
void add_runner_commands(CLI::App& app);
void add_convert_commands(CLI::App& app);

// The completion script of a program for "bash" or "zsh".
std::string completion_script(const CLI::App& app, const std::string& program, const std::string& shell);

}  // namespace fewbit::cli
