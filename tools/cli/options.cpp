#include "tools/cli/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "src/core/files/command_line.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/core/text/nearest.h"
#include "src/core/text/size_words.h"
#include "src/model/hub_cache.h"
#include "src/text/corpus.h"
#include "tools/cli/ranks.h"
#include "tools/cli/results.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

constexpr int kMostThreads = 4096;

std::atomic<int> g_stops{0};

void on_signal(int) {
  if (++g_stops > 1) std::_Exit(130);
}

}  // namespace

void add_common(CLI::App& app, Common& c) {
  app.add_option("--device", c.device, "auto, cpu, cuda or cuda:N")->envname("FEWBIT_DEVICE")->capture_default_str();
  app.add_option("--threads", c.threads, "CPU threads (0 = all)")
      ->envname("FEWBIT_THREADS")
      ->check(in_range(0, kMostThreads));
  app.add_option("--json", c.json, "Write the result as JSON to FILE, or to standard output with -")
      ->type_name("FILE|-")
      ->check(writable_file());
  app.add_flag("--quiet", c.quiet, "No progress bar");
}

CLI::Validator at_least(int64_t least) {
  return {[least](const std::string& text) {
            int64_t n = 0;
            const char* end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, n);
            if (error == std::errc() && rest == end && n >= least) return std::string();
            return fmt::format("expected a whole number of at least {}, found {}", least, text);
          },
          ""};
}

void use_threads(const Common& c) { set_thread_count(c.threads > 0 ? c.threads : the_ranks().threads()); }

Exec make_exec(const Common& c) {
  use_threads(c);
  const Ranks& ranks = the_ranks();
  if (ranks.alone()) return Exec::from_name(c.device);
  if (c.threads == 0) {
    // Open MPI binds each process to one core, or one socket, unless it is told otherwise.
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (ranks.threads() < processors / ranks.node_size())
      say(c,
          fmt::format("note: the launcher leaves each process {} of {} processors; mpirun --bind-to none shares them "
                      "all out\n",
                      ranks.threads(), processors));
  }
  // A GPU for each rank of the machine; a device with a number is shared by those that ask for it.
  const bool next_gpu = c.device == "cuda" || (c.device == "auto" && Exec::cuda_available());
  return Exec::from_name(next_gpu ? fmt::format("cuda:{}", ranks.node_rank()) : c.device);
}

void write_json(const Common& c, const std::string& text) {
  if (c.json.empty() || the_ranks().rank() != 0) return;
  if (c.json_to_stdout()) return print_result(text);
  write_result(c.json, text);
}

void say(const Common& c, const std::string& text) {
  if (the_ranks().rank() == 0) std::fputs(text.c_str(), c.json_to_stdout() ? stderr : stdout);
}

int64_t bytes_from(std::string_view text, std::string_view flag) {
  const double bytes = bytes_in_words(text);
  if (!(bytes >= 1) || bytes > 0x1p62)
    fail(ErrorKind::usage, fmt::format("{}: expected a size such as 5GB or 512MiB, found \"{}\"", flag, text));
  return static_cast<int64_t>(bytes);
}

std::filesystem::path model_or_demo(const Common& c, const std::string& model) {
  if (!model.empty()) return hub_folder(model);
  std::filesystem::path dir = builtin_model_dir();
  say(c, fmt::format("no MODEL given: using the embedded demo model ({})\n", dir.string()));
  return dir;
}

DType compute_dtype(const std::string& name) {
  if (name == "float32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  fail(ErrorKind::usage, unknown_name("--dtype", name, {"float32", "bf16"}));
}

std::string display(DType dtype) { return dtype == DType::f32 ? "float32" : "bf16"; }

void add_kv_cache(CLI::App& app, std::string& name) {
  app.add_option(
         "--kv-cache", name,
         "Keys and values: bf16 (not quantized: the type of --dtype), fp8 (E4M3, the checkpoint's scales, keys "
         "turned; latents with a scale for every 128 features of a token), fp8-plain (the same, not turned: as other "
         "engines store them), int8 (a scale per token and head), "
         "int4 (4.5 bits a value: a scale and a center for 64 features of a token and head, keys and values turned), "
         "kivi2 or kivi4 (3 or 5 bits a value behind the last 128 to 159 tokens: keys in groups of 32 tokens of a "
         "channel, values of 32 features of a token; sequences in one piece, so not for serve or --concurrency)")
      ->capture_default_str();
}

void add_head(CLI::App& app, std::string& name) {
  app.add_option(
         "--head", name,
         "The head: stored (as the checkpoint has it), bf16 (floats; dequantized where it is packed), fp8 or int4 "
         "(a float head is rounded when it is loaded: E4M3 with a scale per output, or groups of 128; so is that of "
         "a tied embedding, which stays itself)")
      ->capture_default_str();
}

void add_acts(CLI::App& app, std::string& name) {
  app.add_option("--acts", name,
                 "Inputs of packed integers and of GGUF blocks: bf16 (as they are) or int8 (rounded per token and 32 "
                 "columns, as llama.cpp does; CPU alone)")
      ->capture_default_str();
}

std::string head_and_acts(const std::string& head, const std::string& acts) {
  return head + " head" + (acts == "bf16" ? "" : ", " + acts + " inputs");
}

CLI::Option* add_tp(CLI::App& app, int& tp) {
  return app
      .add_option("--tp", tp,
                  "Processes that share the model, each with its part of every layer: as many as mpirun -n N or srun "
                  "starts (docs/ranks.md)")
      ->check(at_least(1))
      ->capture_default_str();
}

std::unique_ptr<RankSums> ranks_for(int tp) {
  const Ranks& ranks = the_ranks();
  if (tp != ranks.size())
    fail(ErrorKind::usage,
         ranks.alone()
             ? fmt::format("--tp {}: this is one process; start {} of them: mpirun -n {} …", tp, tp, tp)
             : fmt::format("--tp {}: {} processes were started; expected --tp {}", tp, ranks.size(), ranks.size()));
  return ranks.alone() ? nullptr : std::make_unique<RankSums>(ranks);
}

Progress::Progress(const Common& c)
    : enabled_(!c.quiet && the_ranks().rank() == 0 && ::isatty(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()),
      drawn_(start_) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (dirty_) std::fputs("\r\033[K", stderr);
  dirty_ = false;
}

void Progress::update(const std::string& phase, double fraction, const std::string& detail) {
  if (fraction < 1) stop_if_requested();
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (phase != phase_) {
    phase_ = phase;
    start_ = now;
  } else if (now - drawn_ < std::chrono::milliseconds(100) && fraction < 1) {
    return;
  }
  drawn_ = now;
  dirty_ = true;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const int cells = static_cast<int>(fraction * 30);
  std::string eta =
      fraction > 0.01 && fraction < 1 ? ", " + human_seconds(elapsed * (1 - fraction) / fraction) + " left" : "";
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} %{}{}{}", phase, std::string(static_cast<size_t>(cells), '#'),
             std::string(static_cast<size_t>(30 - cells), '.'), 100 * fraction, eta, detail.empty() ? "" : ", ",
             detail);
  std::fflush(stderr);
}

void install_stop_handler() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}
bool stop_requested() { return g_stops > 0; }

void stop_if_requested() {
  if (!stop_requested() || !the_ranks().alone()) return;  // several ranks stop together, between blocks
  fail(ErrorKind::stopped, "stopped; nothing was written: start it again by: " + this_command());
}

}  // namespace fewbit::cli
