#pragma once
// What GGUF's tokenizer metadata means for words and merges, for both directions. Internal to src/text.
#include <string_view>
#include <vector>

#include "formats/gguf/metadata.h"
#include "src/text/bpe.h"

namespace fewbit::gguf_words {

inline constexpr const char* kMark = "\xe2\x96\x81";  // U+2581, SentencePiece's space
inline constexpr const char* kNoTokenizer = "none";   // as tokenizer.ggml.model
enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// How a text falls into words, and the names llama.cpp has for it; the first of a rule is written.
struct SplitRule {
  std::string_view name, regex;  // regex "": that of GPT-2, which ByteLevel brings along
  bool ignore_merges, nfc, bos;
};
inline constexpr std::string_view kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
inline constexpr std::string_view kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
inline constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
inline constexpr SplitRule kRules[] = {
    {"llama-bpe", kLlama3, true, false, true},
    {"smaug-bpe", kLlama3, false, false, false},
    {"qwen2", kQwen2, false, true, false},
    {"gpt-2", "", false, false, false},
    {"llama3", kLlama3, true, false, true},
    {"llama-v3", kLlama3, true, false, true},
    {"deepseek-r1-qwen", kQwen2, false, true, false},
    {"dbrx", kLlama3, false, false, false},  // Phi-4
};

// The rule that tokenizer.ggml.pre names. Error{unsupported} listing the known ones.
const SplitRule& split_rule_of(const gguf::Metadata&);

// SentencePiece's merges, which GGUF tells by scores: every pair of tokens that makes a third may merge, the
// token of the highest score first. Sorted by score, then by the ids of the token and its left half.
struct ScoredMerge {
  int32_t left, right, id;
  float score;
};
std::vector<ScoredMerge> merges_from_scores(const gguf::Metadata&, const Vocabulary&);

}  // namespace fewbit::gguf_words
