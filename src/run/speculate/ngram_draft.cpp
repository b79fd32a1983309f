#include "src/run/speculate/ngram_draft.h"

#include <algorithm>

namespace fewbit {
namespace {

// Tokens before `end` that agree with the last ones of the text.
int64_t agreeing(std::span<const int32_t> text, int64_t end) {
  const int64_t most = std::min(end, kLongestMatch);
  int64_t n = 0;
  while (n < most && text[static_cast<size_t>(end - 1 - n)] == text[static_cast<size_t>(std::ssize(text) - 1 - n)]) ++n;
  return n;
}

}  // namespace

std::vector<int32_t> ngram_draft(std::span<const int32_t> text, int64_t k) {
  int64_t longest = kShortestMatch - 1, from = -1;
  for (int64_t end = std::ssize(text) - 1; end > 0 && longest < kLongestMatch; --end)
    if (const int64_t n = agreeing(text, end); n > longest) longest = n, from = end;
  std::vector<int32_t> draft;
  if (from < 0) return draft;
  const int64_t behind = std::ssize(text) - from;
  for (int64_t i = 0; i < std::min(k, longest); ++i)
    draft.push_back(i < behind ? text[static_cast<size_t>(from + i)] : draft[static_cast<size_t>(i - behind)]);
  return draft;
}

}  // namespace fewbit
