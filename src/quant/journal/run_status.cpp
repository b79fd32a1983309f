#include "src/quant/journal/run_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/file_io.h"
#include "src/core/files/command_line.h"
#include "src/core/host_memory.h"
#include "src/quant/journal/journal.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFile = "status.json";
constexpr double kBetween = 1;        // seconds between two writes
constexpr double kFresh = 10;         // seconds: what was said on another host so long ago still holds
constexpr double kTellsEnough = 0.1;  // share of a run from which its own pace says when it ends

double unix_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

int64_t bytes_in(const fs::path& folder) {
  int64_t n = 0;
  std::error_code ec, gone;  // files come and go meanwhile
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_regular_file(gone))
      if (const uintmax_t size = it->file_size(gone); !gone) n += static_cast<int64_t>(size);
  return n;
}

// A file of another version may lack keys, or have them of another kind: then their defaults stand.
template <class T>
void take(const Json& j, const char* key, T& to) {
  if (!j.contains(key)) return;
  const Json& v = j[key];
  if constexpr (std::is_same_v<T, std::string>) {
    if (v.is_string()) to = v.get<std::string>();
  } else if (v.is_number()) {
    to = v.get<T>();
  }
}

bool runs(const RunStatus& s) {
  if (s.holder.holds) return *s.holder.holds;
  return s.told && s.age_seconds < kFresh;
}

}  // namespace

StatusFile::StatusFile(fs::path partial, const StatusPlan& plan)
    : partial_(std::move(partial)), plan_(plan), command_(resume_command()) {
  renew();
}

void StatusFile::entered(const std::string& phase) {
  phase_ = phase;
  renew();
}

void StatusFile::reached(int64_t block, double fraction) {
  block_ = std::min(block, plan_.blocks);
  fraction_ = fraction;
  renew();
}

void StatusFile::renew() {
  const double now = clock_.seconds();
  if (written_ >= 0 && now - written_ < kBetween) return;
  written_ = now;
  const Json j = {{"phase", phase_},
                  {"block", block_},
                  {"blocks", plan_.blocks},
                  {"sealed_before", plan_.sealed_before},
                  {"fraction", fraction_},
                  {"elapsed_seconds", now},
                  {"planned_seconds", plan_.planned_seconds},
                  {"peak_host_bytes", resident_memory().peak},
                  {"planned_host_bytes", plan_.planned_host_bytes},
                  {"planned_gpu_bytes", plan_.planned_gpu_bytes},
                  {"updated", unix_now()},
                  {"resume", command_}};
  const fs::path fresh = partial_ / ".status.tmp";
  std::ofstream(fresh, std::ios::binary) << j.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  std::error_code ignored;
  fs::rename(fresh, partial_ / kFile, ignored);
}

std::optional<double> remaining(double elapsed, double before, double fraction, double planned) {
  const double done = before < 1 ? std::clamp((fraction - before) / (1 - before), 0.0, 1.0) : 1;
  if (done >= kTellsEnough || (planned <= 0 && done > 0)) return elapsed / done * (1 - done);
  if (planned > 0) return std::max(0.0, planned - elapsed);
  return std::nullopt;
}

RunStatus read_status(const fs::path& out) {
  const fs::path place = place_of(out), partial = partial_of(out);
  RunStatus s;
  const std::optional<RunHolder> holder = holder_of_run(partial);
  std::error_code ec;
  if (!holder) {
    if (!fs::is_regular_file(place / "quant_report.json", ec))
      fail(ErrorKind::io,
           fmt::format("{}: neither a finished checkpoint of fewbit nor a run that writes one ({} is not "
                       "there); expected the OUT of a `quantize` command",
                       out.string(), partial.string()));
    s.state = RunStatus::State::finished;
    s.report = text_or_empty(place / "quant_report.json");
    return s;
  }
  s.holder = *holder;
  const Json j = json_or_discarded(text_or_empty(partial / kFile), kRecordJson);
  double updated = 0, before = 0;
  if ((s.told = j.is_object())) {
    take(j, "phase", s.phase);
    take(j, "resume", s.resume);
    take(j, "block", s.block);
    take(j, "blocks", s.blocks);
    take(j, "fraction", s.fraction);
    take(j, "elapsed_seconds", s.elapsed_seconds);
    take(j, "planned_seconds", s.planned_seconds);
    take(j, "peak_host_bytes", s.peak_host_bytes);
    take(j, "planned_host_bytes", s.planned_host_bytes);
    take(j, "planned_gpu_bytes", s.planned_gpu_bytes);
    take(j, "updated", updated);
    take(j, "sealed_before", before);
    s.age_seconds = std::max(0.0, unix_now() - updated);
  }
  s.sealed_blocks = recorded_blocks(partial);
  s.disk_bytes = bytes_in(partial);
  if (!runs(s)) return s;
  s.state = RunStatus::State::running;
  s.elapsed_seconds += s.told ? s.age_seconds : 0;
  if (s.blocks > 0)
    s.remaining_seconds =
        remaining(s.elapsed_seconds, before / static_cast<double>(s.blocks), s.fraction, s.planned_seconds);
  return s;
}

}  // namespace fewbit
