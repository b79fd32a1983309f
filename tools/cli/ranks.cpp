#include "tools/cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/cpu/arithmetic.h"
#include "src/ranks/exchange.h"
#include "tools/cli/rank_watch.h"

namespace fewbit::cli {
namespace {

// What the process knows of itself and of the others of its machine. The watch goes before the ranks that it uses.
struct Here {
  std::mutex guard{};  // of the place
  std::string place{};
  std::unique_ptr<RankWatch> watch{};
};
Here& here() {
  the_ranks();
  static Here h;
  return h;
}

}  // namespace

Ranks& the_ranks() {
  static Ranks ranks;
  return ranks;
}

void join_ranks(const Launch& launch, std::string_view program, const std::string& command,
                std::span<const std::string> on_ranks) {
  if (launch.alone()) return;
  if (std::find(on_ranks.begin(), on_ranks.end(), command) == on_ranks.end()) {
    const std::string name = fmt::format("{}{}{}", program, command.empty() ? "" : " ", command);
    fail(ErrorKind::usage, fmt::format("{} runs as one process; {} started {}: start it without the launcher", name,
                                       launch.by, launch.size > 0 ? fmt::to_string(launch.size) : "several"));
  }
  the_ranks() = Ranks::join(launch);
  here().watch = RankWatch::start(the_ranks(), program);
}

void reach_place(const std::string& place) {
  const std::lock_guard lock(here().guard);
  here().place = place;
}

std::string reached_place() {
  const std::lock_guard lock(here().guard);
  return here().place;
}

void leave_ranks() {
  here().watch.reset();
  the_ranks().finish();
}

void require_alike(const Exec& ex) {
  const std::string here = ex.on_cuda() ? ex.device_name() : cpu_arithmetic() + " with bf16 by " + cpu_bf16_products();
  if (const std::string first = text_of_root(the_ranks(), here); here != first)
    fail(ErrorKind::device,
         fmt::format("computes by {} and rank 0 by {}, so that last bits would differ; start all ranks on machines of "
                     "one kind (CPUs: or give all the same OPENBLAS_CORETYPE)",
                     here, first));
}

int report_failure(const Launch& launch, std::string_view program, const std::string& line, int exit_code) {
  const Ranks& ranks = the_ranks();
  if (launch.alone()) {
    fmt::print(stderr, "{}: {}\n", program, line);
    return exit_code;
  }
  // What all ranks meet, such as a model that is refused, is said once, by rank 0: the others give it this time to end
  // them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr auto kRankZeroFirst = std::chrono::milliseconds(4000);  // instrumented processes start further apart
#else
  constexpr auto kRankZeroFirst = std::chrono::milliseconds(500);
#endif
  if (launch.rank != 0) {
    std::signal(SIGTERM, SIG_DFL);
    std::this_thread::sleep_for(kRankZeroFirst);
  }
  if (here().watch && here().watch->another_is_gone()) std::this_thread::sleep_for(std::chrono::seconds(2));
  if (here().watch) here().watch->fails();
  const std::string place = reached_place();
  fmt::print(stderr, "{}: rank {} on {}{}: {}\n", program, launch.rank, host_name(), place.empty() ? "" : ", " + place,
             line);
  std::fflush(stdout);
  std::fflush(stderr);
  ranks.abort(exit_code);
}

}  // namespace fewbit::cli
