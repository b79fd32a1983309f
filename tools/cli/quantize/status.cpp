#include "tools/cli/quantize/status.h"
#include "tools/cli/results.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/strings.h"
#include "src/core/text/shown.h"
#include "src/quant/journal/run_status.h"

namespace fewbit::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongCommand = 4096;  // bytes: what is pasted must be whole, and names of files may be long

struct StatusArgs {
  std::string out, json;
};

const char* name_of(RunStatus::State s) {
  return s == RunStatus::State::running ? "running" : s == RunStatus::State::stopped ? "stopped" : "finished";
}

std::string json_of(const RunStatus& s, const std::string& out) {
  Json j = {{"out", out}, {"state", name_of(s.state)}};
  if (s.state == RunStatus::State::finished) {
    j["report"] = ordered_json_or_discarded(s.report, kTableJson);
    if (j["report"].is_discarded()) j["report"] = nullptr;
    return j.dump(1) + "\n";
  }
  j.update({{"phase", s.phase},
            {"block", s.block},
            {"blocks", s.blocks},
            {"sealed_blocks", s.sealed_blocks},
            {"fraction", s.fraction},
            {"elapsed_seconds", s.elapsed_seconds},
            {"planned_seconds", s.planned_seconds},
            {"remaining_seconds", s.remaining_seconds ? Json(*s.remaining_seconds) : Json()},
            {"age_seconds", s.told ? Json(s.age_seconds) : Json()},
            {"peak_host_bytes", s.peak_host_bytes},
            {"planned_host_bytes", s.planned_host_bytes},
            {"planned_gpu_bytes", s.planned_gpu_bytes},
            {"disk_bytes", s.disk_bytes},
            {"host", s.holder.host},
            {"pid", s.holder.pid},
            {"started", s.holder.started},
            {"resume", s.resume}});
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string finished_line(const RunStatus& s, const std::string& out) {
  const Json r = ordered_json_or_discarded(s.report, kTableJson);
  const auto number = [&](const char* key) {
    return r.is_object() && r.contains(key) && r[key].is_number() ? r[key].get<double>() : 0.0;
  };
  const std::string recipe =
      r.is_object() && r.contains("recipe") && r["recipe"].is_string() ? r["recipe"].get<std::string>() : "unknown";
  return fmt::format("{} is finished: recipe \"{}\", {:.3f} bits per weight, made in {}\n", out, recipe,
                     number("bits_per_weight"), human_seconds(number("seconds")));
}

std::string lines_of(const RunStatus& s, const std::string& out) {
  if (s.state == RunStatus::State::finished) return finished_line(s, out);
  const bool running = s.state == RunStatus::State::running;
  std::string t = fmt::format("{}: {}, {}\n", out, running ? "running" : "stopped",
                              s.holder.host.empty() ? "by an unknown process"
                                                    : fmt::format("process {} on {} since {}", s.holder.pid,
                                                                  shown(s.holder.host), shown(s.holder.started)));
  if (s.told) {
    t += fmt::format("block {} of {}, phase {}, {:.0f} %; {} sealed\n", s.block < s.blocks ? s.block + 1 : s.blocks,
                     s.blocks, shown(s.phase), 100 * s.fraction, s.sealed_blocks);
    t += fmt::format("{} so far", human_seconds(s.elapsed_seconds));
    if (s.planned_seconds > 0) t += fmt::format(" of {} planned", human_seconds(s.planned_seconds));
    if (s.remaining_seconds) t += fmt::format(", about {} to go", human_seconds(*s.remaining_seconds));
    t += fmt::format("; host memory {} at its peak ({} planned)", human_bytes(s.peak_host_bytes),
                     human_bytes(s.planned_host_bytes));
    if (s.planned_gpu_bytes > 0) t += fmt::format(", GPU {} planned", human_bytes(s.planned_gpu_bytes));
    t += fmt::format("; {} on disk\n", human_bytes(s.disk_bytes));
  } else {
    t += fmt::format("{} blocks sealed; {} on disk; the run has said nothing of itself\n", s.sealed_blocks,
                     human_bytes(s.disk_bytes));
  }
  if (running) return t;
  return t + fmt::format("go on with: {}\n",
                         s.resume.empty() ? "the same command and --resume" : shown(s.resume, kLongCommand));
}

}  // namespace

void add_status_command(CLI::App& app) {
  const auto a = std::make_shared<StatusArgs>();
  CLI::App* status = app.add_subcommand("status", "Print where the run that writes OUT stands; touches nothing");
  status->add_option("OUT", a->out, "Folder that a run writes, or has written")->required();
  status->add_option("--json", a->json, "Write the same as JSON to FILE, or to standard output with -")
      ->type_name("FILE|-")
      ->check(writable_file());
  status->callback([a] {
    const RunStatus s = read_status(a->out);
    Common common;
    common.json = a->json;
    say(common, lines_of(s, a->out));
    write_json(common, json_of(s, a->out));
  });
}

}  // namespace fewbit::cli
