#pragma once
// Drafts by prompt lookup (Saxena 2023; n-gram speculation in vLLM): what followed the last time that the text ended as
// it ends now.
#include <cstdint>
#include <span>
#include <vector>

namespace fewbit {

// Matches of one or two tokens are mostly chance ("of the"), and wrong drafts cost time on a text that does not repeat;
// longer ones than kLongestMatch tell no more which of two places is the better one.
inline constexpr int64_t kShortestMatch = 3;
inline constexpr int64_t kLongestMatch = 16;

// Up to `k` tokens to follow `text`: those behind the earlier place whose tokens agree longest with the end of the text
// (the latest of several), at least kShortestMatch of them; no more than agree, for a short match is often chance and a
// wrong draft costs its rows. Where they run into the end of the text they go on with the
// draft itself, so that a repeated piece shorter than `k` is repeated further. Empty where nothing agrees.
std::vector<int32_t> ngram_draft(std::span<const int32_t> text, int64_t k);

}  // namespace fewbit
