#include "src/quant/output/out_folder.h"

#include <fmt/format.h>

#include "src/core/error.h"
#include "src/core/file_io.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// Whether `inner` is `outer` or below it. Both as far as they exist: links are followed, and a folder that is
// reached by two names (a mount, a link on the way) is one.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  std::error_code ec;
  const fs::path whole = fs::weakly_canonical(fs::absolute(outer, ec), ec);
  for (fs::path p = fs::weakly_canonical(fs::absolute(inner, ec), ec);; p = p.parent_path()) {
    if (p == whole || fs::equivalent(p, whole, ec)) return true;
    if (p == p.parent_path()) return false;
  }
}

fs::path parent_of(const fs::path& p) { return p.has_parent_path() ? p.parent_path() : fs::path("."); }

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (!rename_to_new(from, to))
    fail(ErrorKind::io, fmt::format("{}: cannot rename to {}: it exists", from.string(), to.string()));
}

}  // namespace

void refuse_overlap(const fs::path& model, const fs::path& out) {
  std::error_code ec;
  const auto refuse = [&](const char* how) {
    fail(ErrorKind::usage, fmt::format("OUT {} {} MODEL {}; choose another OUT: the model is never written to",
                                       out.string(), how, model.string()));
  };
  const bool inside = lies_in(out, model), around = lies_in(model, out);
  if (inside && around) refuse("is");
  if (inside) refuse("lies in");
  if (around) refuse("holds");
}

void require_folder_of_out(const fs::path& parent) {
  if (!fs::is_directory(parent))
    fail(ErrorKind::io,
         fmt::format("OUT: expected a folder to write it into, found no {}; make that first", parent.string()));
}

void refuse_to_replace(const fs::path& out) {
  std::error_code ec;
  if (!fs::exists(out / "config.json", ec))
    fail(ErrorKind::usage,
         fmt::format("{} exists and is not a checkpoint folder; --force does not replace it", out.string()));
  for (fs::directory_iterator it(out, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_directory(ec))
      fail(ErrorKind::usage, fmt::format("{} holds the folder {}, which is no part of a checkpoint; --force does not "
                                         "replace it",
                                         out.string(), it->path().filename().string()));
}

void put_in_place(const fs::path& built, const fs::path& out) {
  rename_or_fail(built, out);
  sync_folder(parent_of(out));
}

void put_in_place_of(const fs::path& built, const fs::path& out, const fs::path& aside) {
  if (!exchange(built, out)) return put_in_place_aside(built, out, aside);
  sync_folder(parent_of(out));
}

void put_in_place_aside(const fs::path& built, const fs::path& out, const fs::path& aside) {
  rename_or_fail(out, aside);
  try {
    rename_or_fail(built, out);
  } catch (const Error&) {
    rename_to_new(aside, out);
    throw;
  }
  sync_folder(parent_of(out));
}

}  // namespace fewbit
