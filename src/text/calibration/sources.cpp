#include "src/text/calibration/sources.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cstdlib>

#include "src/core/error.h"
#include "src/core/strings.h"
#include "src/text/documents.h"
#include "src/text/files/packed_text.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKinds = ".txt, .md, .jsonl, each also with .gz or .zst";

bool is_text(const fs::path& path) {
  const std::string inside = text_extension(path);
  return inside == ".txt" || inside == ".md" || inside == ".jsonl";
}

void refuse_parquet(const fs::path& path) {
  if (path.extension() != ".parquet") return;
  const std::string jsonl = fs::path(path).replace_extension(".jsonl").filename().string();
  fail(
      ErrorKind::usage,
      fmt::format("{0}: Parquet is not read; make JSONL of it with one command: duckdb -c \"COPY (SELECT * FROM '{0}') "
                  "TO '{1}' (FORMAT json)\" and give --calib {1}",
                  path.string(), jsonl));
}

std::vector<fs::path> of_folder(const fs::path& folder) {
  std::vector<fs::path> files, parquet;
  for (const auto& entry : fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    if (!entry.is_regular_file()) continue;
    if (is_text(entry.path())) files.push_back(entry.path());
    if (entry.path().extension() == ".parquet") parquet.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::sort(parquet.begin(), parquet.end());
  if (files.empty() && !parquet.empty()) refuse_parquet(parquet.front());
  if (files.empty()) fail(ErrorKind::usage, fmt::format("{}: a folder without texts ({})", folder.string(), kKinds));
  return files;
}

std::vector<fs::path> matching(const std::string& pattern) {
  glob_t found{};
  std::vector<fs::path> files;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; ++i)
      if (fs::is_regular_file(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  std::sort(files.begin(), files.end());
  if (files.empty()) fail(ErrorKind::usage, fmt::format("--calib {}: no file matches this pattern", pattern));
  return files;
}

void add_records(const std::string& content, const std::string& path, const CalibReading& how, CalibPart& out) {
  const std::vector<std::string> lines = split(content, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}: line {}", path, i + 1);
    Record r = read_record(lines[i], where, how.chat, {.field = how.field, .pairs = true});
    if (!out.documents.empty() && r.chat != out.chat)
      fail(ErrorKind::checkpoint, where + ": texts and `messages` are mixed in one file");
    out.chat = r.chat;
    out.documents.push_back(std::move(r.text));
  }
  if (out.documents.empty()) fail(ErrorKind::checkpoint, path + ": holds no record");
}

}  // namespace

CalibSource calib_source(const std::string& text) {
  std::error_code ignored;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || fs::exists(text, ignored)) return {text};
  const std::string tail = text.substr(colon + 1);
  char* end = nullptr;
  const double weight = std::strtod(tail.c_str(), &end);
  if (tail.empty() || *end != '\0') return {text};  // a colon of a name
  if (!(weight > 0) || weight > 1e6)
    fail(ErrorKind::usage, fmt::format("--calib {}: a weight of {}; expected a number above 0, for example {}:0.7",
                                       text, tail, text.substr(0, colon)));
  return {text.substr(0, colon), weight};
}

std::vector<fs::path> calib_files(const std::string& name) {
  std::error_code ignored;
  refuse_parquet(name);
  if (fs::is_directory(name, ignored)) return of_folder(name);
  if (!fs::exists(name, ignored) && name.find_first_of("*?[") != std::string::npos) return matching(name);
  if (!fs::exists(name, ignored))
    fail(ErrorKind::usage,
         fmt::format(
             "--calib {}: there is no such file; give builtin, self, or a text, a .jsonl or a .safetensors file, "
             "a folder or a pattern that is there",
             name));
  return {name};
}

CalibPart calib_text(const fs::path& path, int64_t room, const CalibReading& how) {
  const bool records = text_extension(path) == ".jsonl", packed = text_extension(path) != path.extension();
  if (!records && !packed) return {.text = calibration_text(path, room)};
  bool cut = false;
  std::string content = read_start(path, std::max<int64_t>(room, 1), &cut);
  CalibPart out{.text = {path.string(), ""}};
  if (cut) {
    content.resize(content.rfind('\n') == std::string::npos ? 0 : content.rfind('\n') + 1);
    out.text.name += fmt::format(", its first {} bytes", content.size());
    if (content.empty())
      fail(ErrorKind::usage,
           fmt::format("{}: no line ends within the {} that are left for texts in memory; give fewer sources",
                       out.text.name, human_bytes(room)));
  }
  if (records)
    add_records(content, path.string(), how, out);
  else
    out.text.text = std::move(content);
  return out;
}

}  // namespace fewbit
