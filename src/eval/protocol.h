#pragma once
// Protocols: which windows of a text are run and which of their tokens are scored. Perplexities of different
// protocols are different quantities; docs/evaluation.md has the exact definitions.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/corpus.h"
#include "src/text/documents.h"

namespace fewbit {

enum class Protocol : uint8_t {
  plain,      // documents one after the other, windows side by side, every token but a window's first
  gptq,       // the same over rows joined by "\n\n"
  llama_cpp,  // windows of 512 with BOS in the place of the first token, the second half scored
  sliding,    // overlapping windows, every token scored once
};
std::string_view name_of(Protocol);
Protocol protocol_from(std::string_view name);  // Error{usage} listing the names

struct ProtocolOptions {
  Protocol protocol = Protocol::plain;
  int64_t context =
      0;               // tokens per window; 0 = the protocol's own (2048, llama.cpp 512), at most the model's positions
  int64_t stride = 0;  // of `sliding`; 0 = half the context
  int64_t max_windows = 0;  // 0 = all
};

struct ScoredWindows {
  Windows windows{};
  Protocol protocol = Protocol::plain;
  int64_t stride = 0;
  // The first position of each window whose token is scored, >= 1; empty = 1 in all. The last one is the
  // window's end.
  std::vector<int64_t> first{};
  // Of the text that the windows spell; 0 where there is no tokenizer to tell.
  double bytes_per_token = 0, words_per_token = 0;

  ScoredWindows() = default;
  ScoredWindows(Windows w) : windows(std::move(w)) {}  // NOLINT: all tokens but a window's first
  int64_t first_of(int64_t window) const { return first.empty() ? 1 : first[static_cast<size_t>(window)]; }
  int64_t scored_in(int64_t window) const { return windows.length - first_of(window); }
  int64_t scored() const;
  // The end of the longest run of windows from `begin` with the same first position, at most `limit` windows.
  int64_t run_end(int64_t begin, int64_t limit) const;
};

// Error{usage} where the text gives not one window (llama.cpp: two), or the context exceeds `max_positions`.
ScoredWindows make_windows(const ProtocolOptions&, const Tokenizer&, const Documents&, const std::string& source,
                           int64_t max_positions);
// The same from a file that is too large to be tokenized whole: its parts (read_in_parts) are tokenized on their own,
// as many as --max-windows needs. The ids of a .jsonl file under the other protocols than gptq are those of the whole
// file; those of a text may differ where two pieces meet.
ScoredWindows make_windows(const ProtocolOptions&, const Tokenizer&, const TextFile&,
                           const std::function<const ChatTemplate&()>& chat, int64_t max_positions);
// Windows that are there already (pre-tokenized): Error{usage} for `sliding` and where they exceed
// `max_positions`. `tokenizer` may be null; llama.cpp takes the BOS from it.
ScoredWindows score_windows(const ProtocolOptions&, Windows, const Tokenizer* tokenizer, int64_t max_positions);

}  // namespace fewbit
