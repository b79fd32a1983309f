// Corpus: reading texts, cutting them into windows, finding the built-in texts.
#include "src/text/corpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/error.h"
#include "src/core/strings.h"
#include "src/text/builtin_texts.h"
#include "src/text/files/text_file.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBuiltin = "builtin";

// The text with BOS in front, where the tokenizer has one; what a template puts behind a text is left out.
std::vector<int32_t> tokenize(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = tokenizer.encode(text, Special::none);
  if (const auto bos = tokenizer.bos()) ids.insert(ids.begin(), *bos);
  return ids;
}

std::string too_short(const std::string& name, size_t tokens, int64_t length) {
  return fmt::format("{}: {} tokens are less than one window of {} tokens", name, tokens, length);
}

void check_length(int64_t length) {
  if (length < 1) fail(ErrorKind::usage, fmt::format("a window of {} tokens; expected at least 1", length));
}

// Regular files *.txt of a folder, in name order.
std::vector<fs::path> text_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> out;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".txt") out.push_back(it->path());
  if (error) fail(ErrorKind::io, folder.string() + ": cannot list the built-in texts: " + error.message());
  if (out.empty()) fail(ErrorKind::io, folder.string() + ": no built-in text (*.txt) in this folder");
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::string read_text(const fs::path& path) {
  const TextFile file(path);
  return file.read(0, file.size());
}

CalibText calibration_text(const fs::path& path, int64_t room) {
  const TextFile file(path);
  if (file.size() <= room) return {path.string(), file.read(0, file.size())};
  return {path.string(), "", path};
}

Windows cut_windows(const Tokenizer& tokenizer, const std::string& text, int64_t length, int64_t max_windows,
                    const std::string& source) {
  return cut_windows(tokenize(tokenizer, text), length, max_windows, source);
}

Windows cut_windows(std::vector<int32_t> ids, int64_t length, int64_t max_windows, const std::string& source) {
  check_length(length);
  int64_t count = static_cast<int64_t>(ids.size()) / length;
  if (count == 0)
    fail(ErrorKind::usage, too_short(source, ids.size(), length) + "; give a longer text or a shorter window");
  if (max_windows > 0) count = std::min(count, max_windows);
  ids.resize(static_cast<size_t>(count * length));
  return {count, length, std::move(ids), source};
}

Windows windows_from_ids(std::vector<int32_t> ids, int64_t count, int64_t length, std::string source) {
  if (count < 1 || length < 1 || static_cast<int64_t>(ids.size()) != count * length)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: input_ids has {} values, expected {} x {}", source, ids.size(), count, length));
  if (const auto it = std::find_if(ids.begin(), ids.end(), [](int32_t id) { return id < 0; }); it != ids.end())
    fail(ErrorKind::checkpoint, fmt::format("{}: input_ids holds {} at position {}, expected ids of 0 or more", source,
                                            *it, it - ids.begin()));
  return {count, length, std::move(ids), std::move(source)};
}

fs::path builtin_data_dir() {
  std::error_code error;
  std::vector<fs::path> places;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.push_back((program.parent_path() / ".." / "share" / "fewbit").lexically_normal());
  places.emplace_back(FEWBIT_SOURCE_DATA_DIR);
  std::vector<std::string> looked;
  for (const fs::path& p : places) {
    if (fs::exists(p / "MANIFEST.json", error)) return p;
    looked.push_back(p.string());
  }
  fail(ErrorKind::io, "the built-in data was not found; looked for MANIFEST.json in " + join(looked, " and "));
}

std::vector<CalibText> builtin_calibration() {
  std::vector<CalibText> out;
  for (const fs::path& p : text_files(builtin_data_dir() / "calibration"))
    out.push_back({std::string(kBuiltin) + "/" + p.filename().string(), read_text(p)});
  return out;
}

bool is_builtin_evaluation(const std::string& name) {
  return name == kBuiltin || starts_with(name, std::string(kBuiltin) + ":");
}

std::string builtin_evaluation(const std::string& name) {
  const fs::path all = builtin_data_dir() / "evaluation";
  const std::string wanted = name == kBuiltin ? "english" : name.substr(std::min(name.size(), kBuiltin.size() + 1));
  std::vector<std::string> names, texts;
  for (const auto& entry : fs::directory_iterator(all))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  if (std::find(names.begin(), names.end(), wanted) == names.end())
    fail(ErrorKind::usage,
         fmt::format("{}: there is no such built-in text; expected builtin:{}", name, join(names, " or builtin:")));
  for (const fs::path& p : text_files(all / wanted)) texts.push_back(read_text(p));
  return join(texts, "\n");
}

std::string builtin_evaluation() { return builtin_evaluation(std::string(kBuiltin)); }

fs::path builtin_model_dir() { return builtin_data_dir() / "demo-model"; }

}  // namespace fewbit
