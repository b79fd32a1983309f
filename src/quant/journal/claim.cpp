#include "src/quant/journal/claim.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/digest.h"
#include "src/core/file_io.h"
#include "src/quant/journal/journal.h"
#include "src/quant/output/out_folder.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

bool has_report(const fs::path& dir, const std::string& digest) {
  std::error_code ec;
  return fs::is_regular_file(dir / "quant_report.json", ec) && digest_of_file(dir / "quant_report.json") == digest;
}

// A run was killed when its checkpoint was whole, but before its folder was gone: the rest of the way. An OUT that was
// to be replaced, and still is the old one, is left to --resume.
void settle(const fs::path& out) {
  const fs::path partial = partial_of(out);
  std::optional<RunFolder> folder = RunFolder::take_over(partial);
  if (!folder) return;
  const std::optional<std::string> report = finished_report(partial);
  if (!report) return;
  std::error_code ec;
  const bool there = fs::exists(fs::symlink_status(out, ec));
  if (!there && has_report(partial / kBuilt, *report))
    put_in_place(partial / kBuilt, out);
  else if (!has_report(out, *report))
    return;
  folder->remove();
}

void refuse_existing(const fs::path& out, bool force) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(out, ec))) return;
  if (!force)
    fail(ErrorKind::usage, fmt::format("{} exists; choose another OUT or give --force to replace it", out.string()));
  refuse_to_replace(out);
}

}  // namespace

void check_out(const fs::path& model, const QuantJob& job) {
  const fs::path out = place_of(job.out), parent = fs::absolute(out).parent_path();
  for (const fs::path& place : {out, partial_of(out)}) refuse_overlap(model, place);
  require_folder_of_out(parent);
  settle(out);
  if (!finished_already(job)) refuse_existing(out, job.force);
}

bool finished_already(const QuantJob& job) {
  const fs::path out = place_of(job.out);
  std::error_code ec;
  if (!job.resume || fs::exists(partial_of(out), ec) || !fs::is_regular_file(out / "quant_report.json", ec))
    return false;
  const auto report = json_or_discarded(text_or_empty(out / "quant_report.json"), kTableJson);
  const std::string recipe = report.is_object() && report.contains("recipe") && report["recipe"].is_string()
                                 ? report["recipe"].get<std::string>()
                                 : "unknown";
  if (recipe == job.recipe) return true;
  fail(ErrorKind::usage, fmt::format("nothing to resume: {} is finished, by recipe \"{}\" and not by \"{}\"; choose "
                                     "another OUT, or give --force without --resume to replace it",
                                     out.string(), recipe, job.recipe));
}

RunFolder claim_out(const fs::path& model, const QuantJob& job) {
  check_out(model, job);
  const fs::path out = place_of(job.out), partial = partial_of(out);
  std::error_code ec;
  if (job.resume && !fs::exists(partial, ec))
    fail(ErrorKind::usage, fmt::format("nothing to resume: {} does not exist; run without --resume", partial.string()));
  RunFolder folder = RunFolder::claim(partial);
  refuse_existing(out, job.force);  // another run may have put it there before the lock was ours
  if (job.resume) return folder;
  if (!job.restart && holds_work(partial))
    fail(ErrorKind::usage, fmt::format("{} holds an unfinished run; go on with it by --resume, or remove it and begin "
                                       "anew by --restart (`evaluate sweep`: --force)",
                                       partial.string()));
  folder.wipe();
  return folder;
}

}  // namespace fewbit
