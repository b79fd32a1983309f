// Every type that is not understood is refused by name: a tokenizer that is almost right gives numbers that are quietly
// wrong.
#include "src/text/json/read_steps.h"

#include <fmt/format.h>

#include "src/core/error.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

// GPT-2's own expression, used by ByteLevel with use_regex.
constexpr std::string_view kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// All of ASCII's symbols are punctuation here.
constexpr std::string_view kPunctuation = "[!-/:-@\\[-`{-~\\p{P}]";

void check_count(const JsonNode& n, size_t steps) {
  if (steps > kMaxSteps)
    fail(ErrorKind::unsupported, fmt::format("{}: found {} steps; supported: {} at most", n.where(), steps, kMaxSteps));
}

Pattern read_pattern(const JsonNode& n) {
  if (n.has("String")) return Pattern::literal(n.at("String").text_up_to(kMaxContentBytes));
  if (n.has("Regex")) return Pattern::regex(n.at("Regex").text_up_to(kMaxPatternBytes), n.at("Regex").where());
  n.refuse("String, Regex");
}

std::string one_character(const JsonNode& n) {
  const std::string s = n.text();
  size_t i = 0;
  if (s.empty() || (next_code(s, i), i != s.size())) n.expected("one character");
  return s;
}

// The reference's order. Accents are stripped along with case where nothing is said of them.
void read_bert(const JsonNode& n, std::vector<NormalizerStep>& steps) {
  const bool lower = n.flag("lowercase", true);
  if (n.flag("clean_text", true)) steps.emplace_back(CleanText{});
  if (n.flag("handle_chinese_chars", true)) steps.emplace_back(SpaceIdeographs{});
  if (n.flag("strip_accents", lower)) {
    steps.emplace_back(UnicodeForm::nfd);
    steps.emplace_back(DropMarks{false});
  }
  if (lower) steps.emplace_back(LowercaseText{});
}

SplitBehavior read_behavior(const JsonNode& n) {
  const std::string s = n.text();
  if (s == "Removed") return SplitBehavior::removed;
  if (s == "Isolated") return SplitBehavior::isolated;
  if (s == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (s == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (s == "Contiguous") return SplitBehavior::contiguous;
  n.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// Metaspace, of older files (add_prefix_space) and newer ones (prepend_scheme).
MarkSpaces read_marks(const JsonNode& n) {
  MarkSpaces marks{one_character(n.at("replacement")), PrependScheme::always};
  const bool legacy_off = !n.flag("add_prefix_space", true);
  const std::string scheme = n.text("prepend_scheme", legacy_off ? "never" : "always");
  if (scheme == "first")
    marks.scheme = PrependScheme::first;
  else if (scheme == "never")
    marks.scheme = PrependScheme::never;
  else if (scheme != "always")
    n.at("prepend_scheme").refuse("always, first, never");
  if (legacy_off && scheme != "never") n.at("prepend_scheme").expected("\"never\", as add_prefix_space is false");
  return marks;
}

SplitWords split_by(const JsonNode& n, std::string_view regex, SplitBehavior behavior, bool invert = false) {
  return {Pattern::regex(regex, n.where()), behavior, invert};
}

void read_byte_level(const JsonNode& n, std::vector<PreTokenizerStep>& steps) {
  if (n.flag("add_prefix_space", true)) steps.emplace_back(PrefixSpace{});
  if (n.flag("use_regex", true)) steps.emplace_back(split_by(n, kGpt2Words, SplitBehavior::isolated));
  steps.emplace_back(ByteCharacters{});
}

int64_t read_count(const JsonNode& n) {
  const int64_t count = n.number();
  if (count < 0) n.expected("a count");
  return count;
}

}  // namespace

void read_normalizer(const JsonNode& n, std::vector<NormalizerStep>& steps, int depth) {
  n.check_depth(depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const JsonNode& child : n.at("normalizers").items()) read_normalizer(child, steps, depth + 1);
  } else if (type == "NFC") {
    steps.emplace_back(UnicodeForm::nfc);
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeForm::nfd);
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeForm::nfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeForm::nfkd);
  } else if (type == "Lowercase") {
    steps.emplace_back(LowercaseText{});
  } else if (type == "Strip") {
    steps.emplace_back(StripText{n.flag("strip_left", true), n.flag("strip_right", true)});
  } else if (type == "Prepend") {
    steps.emplace_back(PrependText{n.at("prepend").text_up_to(kMaxContentBytes)});
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceText{read_pattern(n.at("pattern")), n.at("content").text_up_to(kMaxContentBytes)});
  } else if (type == "Precompiled") {
    steps.emplace_back(
        Charsmap::from_base64(n.at("precompiled_charsmap").text(), n.at("precompiled_charsmap").where()));
  } else if (type == "StripAccents") {
    steps.emplace_back(DropMarks{true});
  } else if (type == "BertNormalizer") {
    read_bert(n, steps);
  } else {
    n.at("type").refuse(
        "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Precompiled, StripAccents, "
        "BertNormalizer");
  }
  check_count(n, steps.size());
}

void read_pre_tokenizer(const JsonNode& n, std::vector<PreTokenizerStep>& steps, int depth) {
  n.check_depth(depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const JsonNode& child : n.at("pretokenizers").items()) read_pre_tokenizer(child, steps, depth + 1);
  } else if (type == "ByteLevel") {
    read_byte_level(n, steps);
  } else if (type == "Split") {
    steps.emplace_back(
        SplitWords{read_pattern(n.at("pattern")), read_behavior(n.at("behavior")), n.flag("invert", false)});
  } else if (type == "Metaspace") {
    const MarkSpaces marks = read_marks(n);
    steps.emplace_back(marks);
    if (n.flag("split", true))
      steps.emplace_back(SplitWords{Pattern::literal(marks.mark), SplitBehavior::merged_with_next, false});
  } else if (type == "Digits") {
    steps.emplace_back(split_by(
        n, "\\p{N}", n.flag("individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous));
  } else if (type == "Punctuation") {
    steps.emplace_back(
        split_by(n, kPunctuation, n.has("behavior") ? read_behavior(n.at("behavior")) : SplitBehavior::isolated));
  } else if (type == "Whitespace") {
    steps.emplace_back(split_by(n, "\\w+|[^\\w\\s]+", SplitBehavior::removed, true));
  } else if (type == "BertPreTokenizer") {
    steps.emplace_back(split_by(n, "\\s", SplitBehavior::removed));
    steps.emplace_back(split_by(n, kPunctuation, SplitBehavior::isolated));
  } else if (type == "WhitespaceSplit") {
    steps.emplace_back(split_by(n, "\\s", SplitBehavior::removed));
  } else {
    n.at("type").refuse(
        "Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer");
  }
  check_count(n, steps.size());
}

void read_decoder(const JsonNode& n, std::vector<DecoderStep>& steps, int depth) {
  n.check_depth(depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const JsonNode& child : n.at("decoders").items()) read_decoder(child, steps, depth + 1);
  } else if (type == "ByteLevel") {
    steps.emplace_back(BytesFromCharacters{});
  } else if (type == "ByteFallback") {
    steps.emplace_back(BytesFromTokens{});
  } else if (type == "Fuse") {
    steps.emplace_back(FuseTokens{});
  } else if (type == "Strip") {
    steps.emplace_back(StripToken{one_character(n.at("content")), read_count(n.at("start")), read_count(n.at("stop"))});
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceText{read_pattern(n.at("pattern")), n.at("content").text_up_to(kMaxContentBytes)});
  } else if (type == "Metaspace") {
    steps.emplace_back(read_marks(n));
  } else if (type == "WordPiece") {
    steps.emplace_back(
        JoinWordPieces{n.has("prefix") ? n.at("prefix").text_up_to(kMaxContentBytes) : "##", n.flag("cleanup", true)});
  } else {
    n.at("type").refuse("Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece");
  }
  check_count(n, steps.size());
}

}  // namespace fewbit
