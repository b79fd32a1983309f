// Drawing calibration windows from several texts.
#include "src/text/calibration/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "src/core/error.h"
#include "src/core/hash.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/strings.h"
#include "src/text/documents.h"
#include "src/text/files/offset_draw.h"
#include "src/text/files/text_file.h"

namespace fewbit {
namespace {

constexpr std::string_view kBuiltin = "builtin";

std::string too_short(const std::string& name, size_t tokens, int64_t length) {
  return fmt::format("{}: {} tokens are less than one window of {} tokens", name, tokens, length);
}

// What a generator of windows is keyed by.
std::string content_of(const CalibPart& p) { return p.documents.empty() ? p.text.text : join(p.documents, "\n"); }

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, const CalibPart& p) {
  return tokenize(tokenizer, p.documents.empty() ? Documents{.texts = {p.text.text}}
                                                 : Documents{.texts = p.documents, .chat = p.chat});
}

// How many windows each file gives and was asked for.
struct Share {
  int64_t windows = 0, asked = 0, taken = 0;
};

// A split by weight, earlier texts taking the rest; what short ones lack goes round the others, one by one in order.
void split_samples(const std::vector<CalibPart>& parts, std::vector<Share>& shares, int64_t samples) {
  double weights = 0;
  for (const CalibPart& t : parts) weights += t.weight;
  int64_t missing = samples, rest = samples;
  for (size_t i = 0; i < shares.size(); ++i) {
    // A part in 10⁹ keeps quotients that are whole from falling below themselves.
    shares[i].asked = static_cast<int64_t>(static_cast<double>(samples) * parts[i].weight / weights + 1e-9);
    rest -= shares[i].asked;
  }
  for (size_t i = 0; rest > 0; i = (i + 1) % shares.size()) ++shares[i].asked, --rest;
  for (Share& s : shares) {
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

std::string shortfall_sentence(const std::vector<CalibPart>& parts, const std::vector<Share>& shares, int64_t samples,
                               int64_t length) {
  std::vector<std::string> short_ones;
  int64_t taken = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    taken += shares[i].taken;
    if (shares[i].windows < shares[i].asked)
      short_ones.push_back(fmt::format("{} holds {} of {}", parts[i].text.name, shares[i].windows, shares[i].asked));
  }
  if (short_ones.empty()) return "";
  const std::string sum = taken == samples ? fmt::format("the other files make up for it, {} in all", samples)
                                           : fmt::format("{} in all instead of {}", taken, samples);
  return fmt::format("{}windows of {} tokens: {}; {}", taken == samples ? "" : "warning: ", length,
                     join(short_ones, ", "), sum);
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

// The names of the texts, of several with their tokens.
std::string source_of(const std::vector<CalibPart>& parts, const std::vector<Share>& shares, int64_t length) {
  std::vector<std::pair<std::string, int64_t>> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    const CalibText& t = parts[i].text;
    const bool builtin = starts_with(t.name, std::string(kBuiltin) + "/");
    const std::string name = builtin          ? std::string(kBuiltin)
                             : t.file.empty() ? t.name
                                              : described(TextFile(t.file), "windows drawn by offsets");
    if (names.empty() || names.back().first != name) names.emplace_back(name, 0);
    names.back().second += shares[i].taken * length;
  }
  std::vector<std::string> out;
  for (const auto& [name, tokens] : names) out.push_back(names.size() == 1 ? name : with_tokens(name, tokens));
  return join(out, "+");
}

}  // namespace

Windows draw_parts(const Tokenizer& tokenizer, const std::vector<CalibPart>& parts, int64_t samples, int64_t length,
                   uint64_t seed, std::string* shortfall) {
  if (length < 1) fail(ErrorKind::usage, fmt::format("a window of {} tokens; expected at least 1", length));
  if (samples < 1) fail(ErrorKind::usage, fmt::format("{} calibration samples; expected at least 1", samples));
  if (parts.empty()) fail(ErrorKind::usage, "no calibration text given");
  std::vector<std::vector<int32_t>> ids(parts.size());
  parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      if (parts[i].text.file.empty()) ids[i] = ids_of(tokenizer, parts[i]);
  });
  std::vector<Share> shares(parts.size());
  std::vector<std::string> too_short_files;
  for (size_t i = 0; i < parts.size(); ++i) {
    shares[i].windows = parts[i].text.file.empty() ? static_cast<int64_t>(ids[i].size()) / length
                                                   : offset_windows(TextFile(parts[i].text.file), length);
    if (shares[i].windows == 0) too_short_files.push_back(too_short(parts[i].text.name, ids[i].size(), length));
  }
  if (too_short_files.size() == parts.size())
    fail(ErrorKind::usage, join(too_short_files, "; ") + "; give a longer text or a smaller --seq-len");
  split_samples(parts, shares, samples);
  Windows out;
  out.length = length;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].text.file.empty()) {
      draw(ids[i], content_of(parts[i]), seed, shares[i], out);
      continue;
    }
    const int64_t got = draw_by_offsets(tokenizer, TextFile(parts[i].text.file), seed, shares[i].taken, out);
    if (got < shares[i].taken) shares[i].windows = shares[i].taken = got;  // known only now that it was read
  }
  out.source = source_of(parts, shares, length);
  if (shortfall) *shortfall = shortfall_sentence(parts, shares, samples, length);
  return out;
}

std::string with_tokens(const std::string& source, int64_t tokens) {
  return fmt::format("{} ({} tokens)", source, tokens);
}

Windows draw_calibration(const Tokenizer& tokenizer, const std::vector<CalibText>& texts, int64_t samples,
                         int64_t length, uint64_t seed, std::string* shortfall) {
  std::vector<CalibPart> parts;
  for (const CalibText& t : texts) parts.push_back({.text = t});
  return draw_parts(tokenizer, parts, samples, length, seed, shortfall);
}

}  // namespace fewbit
