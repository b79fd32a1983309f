// Corpus: reading texts, cutting them into windows, drawing a calibration set, finding the built-in texts.
#include "src/text/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "src/core/error.h"
#include "src/core/hash.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/strings.h"
#include "src/text/files/offset_draw.h"
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

// How many windows each file gives and was asked for.
struct Share {
  int64_t windows = 0, asked = 0, taken = 0;
};

// An even split, earlier files taking the rest; what short files lack goes round the others, one by one in
// order.
void split_samples(std::vector<Share>& shares, int64_t samples) {
  const auto files = static_cast<int64_t>(shares.size());
  int64_t missing = samples;
  for (int64_t i = 0; i < files; ++i) {
    Share& s = shares[static_cast<size_t>(i)];
    s.asked = samples / files + (i < samples % files ? 1 : 0);
    s.taken = std::min(s.asked, s.windows);
    missing -= s.taken;
  }
  for (bool gave = true; missing > 0 && gave;) {
    gave = false;
    for (Share& s : shares) {
      if (missing == 0 || s.taken == s.windows) continue;
      ++s.taken, --missing, gave = true;
    }
  }
}

std::string shortfall_sentence(const std::vector<CalibText>& texts, const std::vector<Share>& shares, int64_t samples,
                               int64_t length) {
  std::vector<std::string> parts;
  int64_t taken = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    taken += shares[i].taken;
    if (shares[i].windows < shares[i].asked)
      parts.push_back(fmt::format("{} holds {} of {}", texts[i].name, shares[i].windows, shares[i].asked));
  }
  if (parts.empty()) return "";
  const std::string sum = taken == samples ? fmt::format("the other files make up for it, {} in all", samples)
                                           : fmt::format("{} in all instead of {}", taken, samples);
  return fmt::format("windows of {} tokens: {}; {}", length, join(parts, ", "), sum);
}

// `count` of the windows of `ids`, a partial Fisher-Yates shuffle keyed by seed and text: asking for more
// keeps what fewer would have given.
void draw(const std::vector<int32_t>& ids, const std::string& text, uint64_t seed, const Share& share, Windows& out) {
  std::vector<int64_t> order(static_cast<size_t>(share.windows));
  std::iota(order.begin(), order.end(), int64_t{0});
  Rng rng(seed, content_hash(text.data(), text.size()));
  for (int64_t i = 0; i < share.taken; ++i) {
    const int64_t j = i + static_cast<int64_t>(rng.below(static_cast<uint64_t>(share.windows - i)));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
    const auto from = ids.begin() + order[static_cast<size_t>(i)] * out.length;
    out.ids.insert(out.ids.end(), from, from + out.length);
  }
  out.count += share.taken;
}

std::string source_of(const std::vector<CalibText>& texts) {
  std::vector<std::string> names;
  for (const CalibText& t : texts) {
    const bool builtin = starts_with(t.name, std::string(kBuiltin) + "/");
    const std::string name = builtin          ? std::string(kBuiltin)
                             : t.file.empty() ? t.name
                                              : described(TextFile(t.file), "windows drawn by offsets");
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return join(names, "+");
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

Windows draw_calibration(const Tokenizer& tokenizer, const std::vector<CalibText>& texts, int64_t samples,
                         int64_t length, uint64_t seed, std::string* shortfall) {
  check_length(length);
  if (samples < 1) fail(ErrorKind::usage, fmt::format("{} calibration samples; expected at least 1", samples));
  if (texts.empty()) fail(ErrorKind::usage, "no calibration text given");
  std::vector<std::vector<int32_t>> ids(texts.size());
  parallel_for(static_cast<int64_t>(texts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      if (texts[i].file.empty()) ids[i] = tokenize(tokenizer, texts[i].text);
  });
  std::vector<Share> shares(texts.size());
  std::vector<std::string> too_short_files;
  for (size_t i = 0; i < texts.size(); ++i) {
    shares[i].windows = texts[i].file.empty() ? static_cast<int64_t>(ids[i].size()) / length
                                              : offset_windows(TextFile(texts[i].file), length);
    if (shares[i].windows == 0) too_short_files.push_back(too_short(texts[i].name, ids[i].size(), length));
  }
  if (too_short_files.size() == texts.size())
    fail(ErrorKind::usage, join(too_short_files, "; ") + "; give a longer text or a smaller --seq-len");
  split_samples(shares, samples);
  Windows out;
  out.length = length;
  out.source = source_of(texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].file.empty()) {
      draw(ids[i], texts[i].text, seed, shares[i], out);
      continue;
    }
    const int64_t got = draw_by_offsets(tokenizer, TextFile(texts[i].file), seed, shares[i].taken, out);
    if (got < shares[i].taken) shares[i].windows = shares[i].taken = got;  // known only now that it was read
  }
  if (shortfall) *shortfall = shortfall_sentence(texts, shares, samples, length);
  return out;
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

std::string builtin_evaluation() {
  std::vector<std::string> texts;
  for (const fs::path& p : text_files(builtin_data_dir() / "evaluation")) texts.push_back(read_text(p));
  return join(texts, "\n");
}

fs::path builtin_model_dir() { return builtin_data_dir() / "demo-model"; }

}  // namespace fewbit
