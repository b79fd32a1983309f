#include "tools/cli/main.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <new>
#include <system_error>

#include "src/core/files/bus_error.h"
#include "src/core/host_blocks.h"
#include "src/core/stopwatch.h"
#include "src/core/text/nearest.h"
#include "src/text/utf8.h"
#include "tools/cli/manual.h"
#include "tools/cli/options.h"
#include "tools/cli/ranks.h"
#include "tools/cli/results.h"
#include "tools/cli/usage.h"

namespace fewbit::cli {
namespace {

struct Program {
  void (*add_commands)(CLI::App&);
  const char* description;
  const char* footer;
  bool stops;  // a stop request ends it in order; else at once, for it writes nothing that could be half there
  std::vector<std::string> on_ranks{};  // the commands that several processes may run together; "": without one
};

const std::map<std::string, Program>& programs() {
  static const std::map<std::string, Program> table = {
      {"quantize",
       {add_quantize_commands,
        "Quantizes an LLM checkpoint: plan, calibrate, quantize, write.",
        "Examples:\n"
        "  quantize gptq model/ out/                       int4, groups of 128, Marlin checkpoint\n"
        "  quantize \"gptq int3 g64\" model/ out/            one string, or the same as flags\n"
        "  quantize gptq --set '*.down_proj=int8' model/   other bits for some linears\n"
        "  quantize plan gptq model/                       what would be done, and what refused\n"
        "  quantize advise model/ --gpu rtx4090            which recipe for this GPU and engine\n"
        "  quantize status out/                            where a run stands, from another terminal\n"
        "  mpirun -n 4 quantize gptq model/ out/           four processes, the same bytes\n"
        "  quantize list                                   methods, packings, formats, architectures\n",
        true,
        {""}}},
      {"evaluate",
       {add_evaluate_commands,
        "Judges checkpoints: perplexity by named protocols, distance from a baseline, tasks, reports.",
        "Examples:\n"
        "  evaluate perplexity                             the embedded demo model on the built-in text\n"
        "  evaluate perplexity out/ --data text.txt --context 1024\n"
        "  evaluate perplexity out/ --protocol gptq --data wiki.test.raw\n"
        "  evaluate compare model/ out/ --layers           KL, paired ratio, top-1, where the states part\n"
        "  evaluate tasks out/ tasks.jsonl --baseline model/\n"
        "  evaluate report out/ --html report.html --markdown card.md\n"
        "  evaluate sweep model/ --recipe 'rtn int4' --recipe 'gptq int4'\n"
        "  evaluate certify model/ out/ --max-kl 0.05      one verdict by kind of text, exit code by the limit\n"
        "  evaluate verify out/\n"
        "  mpirun -n 2 evaluate perplexity out/ --tp 2     two processes share the model\n",
        true,
        {"perplexity"}}},
      {"runner",
       {add_runner_commands,
        "Runs a checkpoint: latency per token, text generation, token ids, chat templates.",
        "Examples:\n"
        "  runner bench out/ --tokens 200 --prompt-tokens 512 --batch 4\n"
        "  runner bench out/ --concurrency 1,8 --rate 2 --slo ttft=500ms,itl=50ms     latency and goodput under load\n"
        "  runner bench --ops block,linear                 a GPU's kernels, each alone, against cuBLAS\n"
        "  runner generate out/ --prompt \"Once upon a time\"\n"
        "  runner serve out/ --port 8000                   OpenAI's API, many requests at once\n"
        "  runner tokenize out/ --data text.txt            the ids of a text of any size\n"
        "  runner template out/ --messages chat.json       the text that a chat becomes\n"
        "  mpirun -n 2 runner bench out/ --tp 2            two processes share the model\n",
        false,
        {"bench", "generate"}}},
      {"convert",
       {add_convert_commands,
        "Looks into checkpoints, writes them in other formats, compares them, makes synthetic ones.",
        "Examples:\n"
        "  convert inspect out/\n"
        "  convert to gptq out/ out-gptq/                  the same codes and scales, or refused with the reason\n"
        "  convert to bf16 out/ dense/                     dequantized\n"
        "  convert to gguf:q8_0 model/ model.gguf\n"
        "  convert diff out/ out-gptq/                     what differs, the worst first\n"
        "  convert synth --preset llama3-8b --format marlin big/\n",
        true}},
  };
  return table;
}

// An exception that no handler sees: thrown while statics are made, or through a function that says noexcept (parts of
// CLI11 and of std::filesystem do, and allocate). One line in place of an abort; the process ends as if killed, which
// every run survives. Asks for no memory.
[[noreturn]] void say_and_end() {
  const char* what = "ended by something that is not an exception (a bug: please report it)";
  try {
    if (std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    what = "out of host memory";
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
  std::_Exit(1);
}

// The first of all statics, so that it stands before another of them can fail.
struct LastHandler {
  LastHandler() noexcept { std::set_terminate(say_and_end); }
};
__attribute__((init_priority(101))) const LastHandler kLastHandler;

const Stopwatch& clock_of_program() {
  static const Stopwatch clock;
  return clock;
}

constexpr int kPipeClosed = 128 + SIGPIPE;  // as a shell has it of a program that the signal ended

void prepare_signals(const char* program, bool stops) {
  // A file that may not grow further (ulimit -f), and a pipe that nobody reads, fail their write, which is then said in
  // words.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  install_bus_handler(program);
  if (stops) install_stop_handler();
}

// Reports hold paths, and are JSON.
void need_utf8(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (!is_utf8(argv[i]))
      fail(ErrorKind::usage,
           fmt::format("argument {} is not UTF-8 (\"{}\"); rename it, or reach it by a link of another "
                       "name",
                       i, to_utf8(argv[i])));
}

int run_command(const char* program, int argc, char** argv, const Launch& launch) {
  const Program& p = programs().at(program);
  need_utf8(argc, argv);
  CLI::App app{p.description, program};
  app.set_version_flag("--version", fmt::format("{} (fewbit) {}", program, FEWBIT_VERSION));
  app.footer(p.footer);
  app.get_formatter()->column_width(34);
  std::string shell;
  app.add_option("--completion", shell,
                 fmt::format("Print a completion script: source <({} --completion bash)", program))
      ->type_name("bash|zsh");
  bool manual = false;  // answered below, before anything else is parsed
  app.add_flag("--man", manual, fmt::format("Print the manual page: {} --man | man -l -", program));
  p.add_commands(app);
  if (argc == 1) {
    std::cout << app.help();
    return 2;
  }
  if (argc == 3 && std::string(argv[1]) == "--completion") {
    const std::string asked = argv[2];
    if (asked != "bash" && asked != "zsh")
      return report_failure({}, program, unknown_name("shell of --completion", asked, {"bash", "zsh"}), 2);
    std::cout << completion_script(app, program, argv[2]);
    return 0;
  }
  if (argc == 2 && std::string(argv[1]) == "--man") {
    std::cout << manual_page(app, program, FEWBIT_VERSION);
    return 0;
  }
  app.parse_complete_callback([&] {
    const std::vector<CLI::App*> commands = app.get_subcommands();
    join_ranks(launch, program, commands.empty() ? "" : commands[0]->get_name(), p.on_ranks);
  });
  try {
    app.parse(argc, argv);
    leave_ranks();
    return 0;
  } catch (const CLI::ParseError& e) {
    if (launch.rank != 0) return e.get_exit_code() == 0 ? 0 : 2;           // rank 0 says it
    if (e.get_exit_code() == 0) return app.exit(e, std::cout, std::cerr);  // help and version
    fmt::print(stderr, "{}\n", usage_line(app, e));
    return 2;
  }
}

}  // namespace

double seconds_since_start() { return clock_of_program().seconds(); }

int run(const char* program, int argc, char** argv) {
  clock_of_program();
  return_freed_memory();
  prepare_signals(program, programs().at(program).stops);
  const Launch launch = launch_from_environment();
  try {
    const int code = run_command(program, argc, argv, launch);
    flush_output();
    return code;
  } catch (const OutputClosed&) {
    return kPipeClosed;
  } catch (const Error& e) {
    return report_failure(launch, program, e.what(), e.exit_code());
  } catch (const std::bad_alloc&) {
    if (launch.alone()) {  // by what asks for no memory
      std::fprintf(stderr, "%s: out of host memory\n", program);
      return 1;
    }
    return report_failure(launch, program, "out of host memory", 1);
  } catch (const std::system_error& e) {
    if (e.code() == std::error_code(EPIPE, std::generic_category())) return kPipeClosed;
    return report_failure(launch, program, e.what(), 1);
  } catch (const std::exception& e) {
    return report_failure(
        launch, program,
        fmt::format("{} (of a file that holds what was not expected here, or a bug: please report it)",
                    to_utf8(e.what())),
        1);
  }
}

}  // namespace fewbit::cli
