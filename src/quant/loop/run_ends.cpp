#include "src/quant/loop/run_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>

#include "src/core/files/command_line.h"

namespace fewbit {
namespace {

Error error_of(const std::exception_ptr& what) {
  try {
    std::rethrow_exception(what);
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::memory, "out of host memory"};
  } catch (const std::filesystem::filesystem_error& e) {
    return {ErrorKind::io, e.what()};
  }
}

// "": nothing is.
std::string kept_by(const Journal& journal) {
  std::error_code ec;
  if (journal.sealed_blocks() > 0) return fmt::format("{} blocks", journal.sealed_blocks());
  return std::filesystem::exists(journal.dir() / kSampled, ec) ? "the sampled texts" : "";
}

}  // namespace

void say_what_is_kept(std::exception_ptr what, const Journal& journal, const ModelSpec& spec) {
  const Error e = error_of(what);
  const std::string kept = kept_by(journal);
  if (e.kind() == ErrorKind::stopped)
    fail(ErrorKind::stopped,
         fmt::format("stopped in block {} of {}; {}", std::min(journal.sealed_blocks(), spec.layers), spec.layers,
                     kept.empty() ? "nothing was kept: start it again by: " + this_command()
                                  : fmt::format("{} are kept in {}: go on by: {}", kept, journal.dir().string(),
                                                resume_command())));
  const bool passes = e.kind() == ErrorKind::io || e.kind() == ErrorKind::memory || e.kind() == ErrorKind::device;
  if (!passes || kept.empty()) throw e;
  fail(e.kind(), fmt::format("{}; {} are kept in {}: when that is mended, go on by: {}", e.what(), kept,
                             journal.dir().string(), resume_command()));
}

std::string keep_less(MemoryPlan& m) {
  if (m.lanes > 1) {
    m.lanes = 1;
    return "experts solved one after the other";
  }
  if (m.beside > 0) {
    m.slot = m.beside = m.experts_ahead = 0;
    m.room.ahead = false;
    return "no copies beside the computation";
  }
  if (m.room.device > 0) {
    m.room.device = 0;
    return "no states on the device";
  }
  if (std::any_of(m.stored.begin(), m.stored.end(), [](const auto& ops) { return !ops.empty(); })) {
    m.stored.clear();
    return "what lies between stops computed again";
  }
  if (m.experts_at_once > 1) {
    m.experts_at_once = 1;
    return "one expert at a time";
  }
  if (m.room.host > 0) {
    m.room.host = 0;
    return "states on disk";
  }
  return "";
}

}  // namespace fewbit
