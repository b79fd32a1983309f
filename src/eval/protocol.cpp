#include "src/eval/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/core/text/nearest.h"

namespace fewbit {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"plain", "gptq", "llama.cpp", "sliding"};

void check_context(int64_t context, int64_t max_positions, const std::string& what) {
  if (context > max_positions)
    fail(ErrorKind::usage,
         fmt::format("{}: expected at most the model's {} positions, found {}", what, max_positions, context));
  if (context < 2) fail(ErrorKind::usage, fmt::format("{}: expected at least 2, found {}", what, context));
}

// llama.cpp's second half: position length / 2 is the first that predicts.
void score_second_half(ScoredWindows& out, const Tokenizer* tokenizer) {
  Windows& w = out.windows;
  if (w.length < 4)
    fail(ErrorKind::usage,
         fmt::format("--context: protocol llama.cpp expects windows of at least 4 tokens, found {}", w.length));
  out.first.assign(static_cast<size_t>(w.count), w.length / 2 + 1);
  if (!tokenizer || !tokenizer->bos()) return;
  for (int64_t i = 0; i < w.count; ++i) w.ids[static_cast<size_t>(i * w.length)] = *tokenizer->bos();
}

// Windows `stride` apart; what no earlier window scored is scored. The tail that fills no window is dropped.
ScoredWindows slide(const std::vector<int32_t>& ids, int64_t context, int64_t stride, int64_t max_windows,
                    const std::string& source) {
  if (stride < 1 || stride >= context)
    fail(ErrorKind::usage,
         fmt::format("--stride: expected at least 1 and less than the context of {}, found {}", context, stride));
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

// Of the text that the windows spell, so many of them decoded at once.
void count_text(ScoredWindows& out, const Tokenizer& tokenizer, int64_t at_once) {
  const Windows& w = out.windows;
  size_t bytes = 0, runs = 0;
  for (int64_t i = 0; i < w.count; i += at_once) {
    const std::string text =
        tokenizer.decode(std::span(w.ids).subspan(static_cast<size_t>(i * w.length),
                                                  static_cast<size_t>(std::min(at_once, w.count - i) * w.length)),
                         true);
    bytes += text.size();
    runs += words(text).size();
  }
  const auto tokens = static_cast<double>(w.ids.size());
  out.bytes_per_token = static_cast<double>(bytes) / tokens;
  out.words_per_token = static_cast<double>(runs) / tokens;
}

int64_t context_of(const ProtocolOptions& o, int64_t max_positions) {
  const int64_t usual = o.protocol == Protocol::llama_cpp ? 512 : 2048;
  return o.context > 0 ? o.context : std::min(usual, max_positions);
}

int64_t stride_of(const ProtocolOptions& o, int64_t context) { return o.stride > 0 ? o.stride : context / 2; }

void check_options(const ProtocolOptions& o, int64_t context, int64_t max_positions) {
  check_context(context, max_positions, "--context");
  if (o.stride > 0 && o.protocol != Protocol::sliding)
    fail(ErrorKind::usage, "--stride is of --protocol sliding alone");
}

ScoredWindows windows_of(const ProtocolOptions& o, std::vector<int32_t> ids, const Tokenizer& tokenizer,
                         const std::string& source, int64_t context) {
  const auto tokens = static_cast<int64_t>(ids.size());
  if (o.protocol == Protocol::llama_cpp && tokens < 2 * context)
    fail(ErrorKind::usage,
         fmt::format("{}: {} tokens; protocol llama.cpp needs at least two windows of {}", source, tokens, context));
  ScoredWindows out = o.protocol == Protocol::sliding
                          ? slide(ids, context, stride_of(o, context), o.max_windows, source)
                          : ScoredWindows(cut_windows(std::move(ids), context, o.max_windows, source));
  out.protocol = o.protocol;
  if (o.protocol == Protocol::llama_cpp) score_second_half(out, &tokenizer);
  return out;
}

// The ids of a part of a file, behind those of the parts before. Documents are tokenized as tokenize() does it, pieces
// of a text without a BOS of their own; rows of protocol gptq have what joins them in front.
void add_part(const ProtocolOptions& o, const Tokenizer& tokenizer, const Documents& part, std::vector<int32_t>& ids) {
  const bool rows = o.protocol == Protocol::gptq && !part.chat;
  if (part.lines && !rows) {
    const std::vector<int32_t> more = tokenize(tokenizer, part);
    ids.insert(ids.end(), more.begin(), more.end());
    return;
  }
  const bool first = ids.empty();
  std::vector<std::vector<int32_t>> pieces(part.texts.size());
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      std::string text = part.texts[i];
      if (rows) text = (first && i == 0 ? "" : "\n\n") + (part.lines ? text : joined_rows({.texts = {text}}));
      pieces[i] = tokenizer.encode(text, Special::none);
    }
  });
  if (const auto bos = tokenizer.bos(); bos && first) ids.push_back(*bos);
  for (const std::vector<int32_t>& p : pieces) ids.insert(ids.end(), p.begin(), p.end());
}

}  // namespace

std::string_view name_of(Protocol p) { return kNames[static_cast<size_t>(p)]; }

Protocol protocol_from(std::string_view name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end())
    fail(ErrorKind::usage, unknown_name("--protocol", name, std::span<const std::string_view>(kNames)));
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
  check_options(o, context_of(o, max_positions), max_positions);
  const bool rows = o.protocol == Protocol::gptq && !documents.chat;
  ScoredWindows out =
      windows_of(o, rows ? tokenize(tokenizer, {.texts = {joined_rows(documents)}}) : tokenize(tokenizer, documents),
                 tokenizer, source, context_of(o, max_positions));
  count_text(out, tokenizer, out.windows.count);
  return out;
}

ScoredWindows make_windows(const ProtocolOptions& o, const Tokenizer& tokenizer, const TextFile& file,
                           const std::function<const ChatTemplate&()>& chat, int64_t max_positions) {
  constexpr int64_t kDecodedAtOnce = 1 << 20;  // tokens
  const int64_t context = context_of(o, max_positions);
  check_options(o, context, max_positions);
  const int64_t stride = o.protocol == Protocol::sliding ? stride_of(o, context) : context;
  // Protocol llama.cpp refuses a text of less than two windows.
  const int64_t enough = o.max_windows > 0 ? (std::max<int64_t>(2, o.max_windows) - 1) * stride + context : INT64_MAX;
  std::vector<int32_t> ids;
  read_in_parts(file, chat, [&](const Documents& part) {
    add_part(o, tokenizer, part, ids);
    return static_cast<int64_t>(ids.size()) < enough;
  });
  ScoredWindows out = windows_of(o, ids, tokenizer, described(file, "tokenized in parts"), context);
  count_text(out, tokenizer, std::max<int64_t>(1, kDecodedAtOnce / context));
  return out;
}

ScoredWindows score_windows(const ProtocolOptions& o, Windows windows, const Tokenizer* tokenizer,
                            int64_t max_positions) {
  check_context(windows.length, max_positions, windows.source + ": tokens of a window");
  if (o.protocol == Protocol::sliding)
    fail(ErrorKind::usage,
         windows.source + ": windows that are given cannot slide; give a text for --protocol sliding");
  ScoredWindows out(std::move(windows));
  out.protocol = o.protocol;
  if (o.protocol == Protocol::llama_cpp) score_second_half(out, tokenizer);
  if (tokenizer) count_text(out, *tokenizer, out.windows.count);
  return out;
}

}  // namespace fewbit
