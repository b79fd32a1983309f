#include "src/eval/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"plain", "gptq", "llama.cpp", "sliding"};

void check_context(int64_t context, int64_t max_positions, const std::string& what) {
  if (context > max_positions)
    fail(ErrorKind::usage, fmt::format("{} {} exceeds the model's {} positions", what, context, max_positions));
  if (context < 2) fail(ErrorKind::usage, fmt::format("{} {}: expected at least 2", what, context));
}

// llama.cpp's second half: position length / 2 is the first that predicts.
void score_second_half(ScoredWindows& out, const Tokenizer* tokenizer) {
  Windows& w = out.windows;
  if (w.length < 4)
    fail(ErrorKind::usage, fmt::format("protocol llama.cpp needs windows of at least 4 tokens, found {}", w.length));
  out.first.assign(static_cast<size_t>(w.count), w.length / 2 + 1);
  if (!tokenizer || !tokenizer->bos()) return;
  for (int64_t i = 0; i < w.count; ++i) w.ids[static_cast<size_t>(i * w.length)] = *tokenizer->bos();
}

// Windows `stride` apart; what no earlier window scored is scored. The tail that fills no window is dropped.
ScoredWindows slide(const std::vector<int32_t>& ids, int64_t context, int64_t stride, int64_t max_windows,
                    const std::string& source) {
  if (stride < 1 || stride >= context)
    fail(ErrorKind::usage,
         fmt::format("--stride {}: expected at least 1 and less than the context of {}", stride, context));
  const auto tokens = static_cast<int64_t>(ids.size());
  ScoredWindows out(cut_windows(ids, context, 1, source));  // refuses a text that is too short
  Windows& w = out.windows;
  w.count = (tokens - context) / stride + 1;
  if (max_windows > 0) w.count = std::min(w.count, max_windows);
  w.ids.clear();
  for (int64_t i = 0; i < w.count; ++i) {
    const auto from = ids.begin() + i * stride;
    w.ids.insert(w.ids.end(), from, from + context);
    out.first.push_back(i == 0 ? 1 : context - stride);
  }
  out.stride = stride;
  return out;
}

void count_text(ScoredWindows& out, const Tokenizer& tokenizer) {
  const std::string text = tokenizer.decode(out.windows.ids, true);
  const auto tokens = static_cast<double>(out.windows.ids.size());
  out.bytes_per_token = static_cast<double>(text.size()) / tokens;
  out.words_per_token = static_cast<double>(words(text).size()) / tokens;
}

}  // namespace

std::string_view name_of(Protocol p) { return kNames[static_cast<size_t>(p)]; }

Protocol protocol_from(std::string_view name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end())
    fail(ErrorKind::usage, fmt::format("unknown --protocol \"{}\"; known: plain gptq llama.cpp sliding", name));
  return static_cast<Protocol>(it - kNames.begin());
}

int64_t ScoredWindows::scored() const {
  int64_t n = 0;
  for (int64_t i = 0; i < windows.count; ++i) n += scored_in(i);
  return n;
}

int64_t ScoredWindows::run_end(int64_t begin, int64_t limit) const {
  int64_t end = begin + 1;
  while (end < windows.count && end - begin < limit && first_of(end) == first_of(begin)) ++end;
  return end;
}

ScoredWindows make_windows(const ProtocolOptions& o, const Tokenizer& tokenizer, const Documents& documents,
                           const std::string& source, int64_t max_positions) {
  const int64_t usual = o.protocol == Protocol::llama_cpp ? 512 : 2048;
  const int64_t context = o.context > 0 ? o.context : std::min(usual, max_positions);
  check_context(context, max_positions, "--context");
  if (o.stride > 0 && o.protocol != Protocol::sliding)
    fail(ErrorKind::usage, "--stride is of --protocol sliding alone");
  const std::vector<int32_t> ids = o.protocol == Protocol::gptq && !documents.chat
                                       ? tokenize(tokenizer, {.texts = {joined_rows(documents)}})
                                       : tokenize(tokenizer, documents);
  const auto tokens = static_cast<int64_t>(ids.size());
  if (o.protocol == Protocol::llama_cpp && tokens < 2 * context)
    fail(ErrorKind::usage,
         fmt::format("{}: {} tokens; protocol llama.cpp needs at least two windows of {}", source, tokens, context));
  ScoredWindows out = o.protocol == Protocol::sliding
                          ? slide(ids, context, o.stride > 0 ? o.stride : context / 2, o.max_windows, source)
                          : ScoredWindows(cut_windows(ids, context, o.max_windows, source));
  out.protocol = o.protocol;
  if (o.protocol == Protocol::llama_cpp) score_second_half(out, &tokenizer);
  count_text(out, tokenizer);
  return out;
}

ScoredWindows score_windows(const ProtocolOptions& o, Windows windows, const Tokenizer* tokenizer,
                            int64_t max_positions) {
  check_context(windows.length, max_positions, windows.source + ": a window of");
  if (o.protocol == Protocol::sliding)
    fail(ErrorKind::usage,
         windows.source + ": windows that are given cannot slide; give a text for --protocol sliding");
  ScoredWindows out(std::move(windows));
  out.protocol = o.protocol;
  if (o.protocol == Protocol::llama_cpp) score_second_half(out, tokenizer);
  if (tokenizer) count_text(out, *tokenizer);
  return out;
}

}  // namespace fewbit
