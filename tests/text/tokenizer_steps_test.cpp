// The steps around a tokenizer's model, by hand-computed cases: normalizers, pre-tokenizers, decoders.
#include <gtest/gtest.h>

#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

std::string normalized(const json& normalizer, const std::string& text) {
  json j = byte_tokenizer();
  j["normalizer"] = normalizer;
  const Tokenizer t = open_json(j);
  return t.decode(t.encode(text, Special::none));
}

TEST(Normalizer, Forms) {
  const std::string composed = "\u00e9", split = "e\u0301", ligature = "\ufb01";
  EXPECT_EQ(normalized({{"type", "NFC"}}, split), composed);
  EXPECT_EQ(normalized({{"type", "NFD"}}, composed), split);
  EXPECT_EQ(normalized({{"type", "NFC"}}, ligature), ligature);
  EXPECT_EQ(normalized({{"type", "NFKC"}}, ligature + split), "fi" + composed);
  EXPECT_EQ(normalized({{"type", "NFKD"}}, ligature + composed), "fi" + split);
}

TEST(Normalizer, TextSteps) {
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "\u00c9A\u0130"), "\u00e9ai\u0307");
  EXPECT_EQ(normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, "\u00a0 a "), "a ");
  EXPECT_EQ(normalized({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, " a \u3000"), " a");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, "a"), "_a");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", "[0-9]+"}}}, {"content", "#"}}, "a12b3"), "a#b#");
  EXPECT_EQ(
      normalized({{"type", "Sequence"},
                  {"normalizers",
                   {{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "B"}}, {{"type", "Lowercase"}}}}},
                 "aXa"),
      "bxb");
}

// The words that a pre-tokenizer makes, seen through a vocabulary that has every stretch of the text as a
// token.
std::string words_of(const json& pre_tokenizer, const std::string& text, const std::string& extra = "") {
  json vocab = json::object();
  const auto add_stretches = [&](const std::string& s) {
    for (size_t b = 0; b < s.size(); ++b)
      for (size_t e = b + 1; e <= s.size(); ++e)
        if (is_utf8(s.substr(b, e - b))) vocab.emplace(s.substr(b, e - b), vocab.size());
  };
  add_stretches(text);
  add_stretches(extra);
  json j = frame(vocab);
  j["model"]["ignore_merges"] = true;
  j["pre_tokenizer"] = pre_tokenizer;
  const Tokenizer t = open_json(j);
  std::string out;
  for (int32_t id : t.encode(text)) out += t.token(id) + "|";
  return out;
}

json split_at(const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenizer, SplitBehaviors) {
  const std::string text = "the-final--countdown";
  EXPECT_EQ(words_of(split_at("Removed"), text), "the|final|countdown|");
  EXPECT_EQ(words_of(split_at("Isolated"), text), "the|-|final|-|-|countdown|");
  EXPECT_EQ(words_of(split_at("MergedWithPrevious"), text), "the-|final-|-|countdown|");
  EXPECT_EQ(words_of(split_at("MergedWithNext"), text), "the|-final|-|-countdown|");
  EXPECT_EQ(words_of(split_at("Contiguous"), text), "the|-|final|--|countdown|");
  EXPECT_EQ(words_of(split_at("Removed", true), text), "-|-|-|");
}

TEST(PreTokenizer, NamedKinds) {
  EXPECT_EQ(words_of({{"type", "Digits"}, {"individual_digits", true}}, "a12b"), "a|1|2|b|");
  EXPECT_EQ(words_of({{"type", "Digits"}, {"individual_digits", false}}, "a12b"), "a|12|b|");
  EXPECT_EQ(words_of({{"type", "Punctuation"}}, "a+b!?"), "a|+|b|!|?|");
  EXPECT_EQ(words_of({{"type", "Whitespace"}}, "ab, c\u0301d  e"), "ab|,|c\u0301d|e|");
  EXPECT_EQ(words_of({{"type", "WhitespaceSplit"}}, "ab, c \t d"), "ab,|c|d|");
}

TEST(PreTokenizer, MetaspaceSchemes) {
  const std::string mark = "\u2581";
  const json always = {{"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", "always"}, {"split", true}};
  json never = always, first = always, whole = always;
  never["prepend_scheme"] = "never";
  first["prepend_scheme"] = "first";
  whole["split"] = false;
  const std::string seen = mark + "a" + mark + "b";
  EXPECT_EQ(words_of(always, "a b", seen), mark + "a|" + mark + "b|");
  EXPECT_EQ(words_of(never, "a b", seen), "a|" + mark + "b|");
  EXPECT_EQ(words_of(first, "a b", seen), mark + "a|" + mark + "b|");
  EXPECT_EQ(words_of(whole, "a b", seen), mark + "a" + mark + "b|");
  EXPECT_EQ(words_of(always, " b", seen), mark + "b|");  // already marked: not twice
  const json legacy = {{"type", "Metaspace"}, {"replacement", mark}, {"add_prefix_space", false}};
  EXPECT_EQ(words_of(legacy, "a b", seen), "a|" + mark + "b|");
}

TEST(PreTokenizer, MetaspaceFirstMarksTheStartOfTheInputOnly) {
  const std::string mark = "\u2581";
  json j = frame({{"a", 0}, {mark, 1}});
  j["added_tokens"] = {added("<x>", 2)};
  j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", mark}, {"prepend_scheme", "first"}};
  EXPECT_EQ(open_json(j).encode("a<x>a"), (Ids{1, 0, 2, 0}));
  j["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_EQ(open_json(j).encode("a<x>a"), (Ids{1, 0, 2, 1, 0}));
}

TEST(PreTokenizer, ByteLevelPrefixSpace) {
  json j = byte_tokenizer();
  j["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer t = open_json(j);
  EXPECT_EQ(t.encode("ab", Special::none), (Ids{' ', 'a', 'b'}));
  EXPECT_EQ(t.encode(" ab", Special::none), (Ids{' ', 'a', 'b'}));
}

std::string decoded(const json& decoder, const std::vector<std::string>& tokens) {
  json vocab = json::object();
  for (const std::string& t : tokens) vocab.emplace(t, vocab.size());
  json j = frame(vocab);
  j["decoder"] = decoder;
  Ids ids;
  for (const std::string& t : tokens) ids.push_back(vocab[t].get<int32_t>());
  return open_json(j).decode(ids);
}

TEST(Decoder, Kinds) {
  const std::string mark = "\u2581", unknown = "\ufffd";
  EXPECT_EQ(decoded(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(decoded({{"type", "Fuse"}}, {"a", "b"}), "ab");
  EXPECT_EQ(decoded({{"type", "ByteFallback"}}, {"a", "<0xC3>", "<0xA9>", "b"}), "a\u00e9b");
  EXPECT_EQ(decoded({{"type", "ByteFallback"}}, {"<0xC3>", "<0x41>"}), unknown + unknown);
  EXPECT_EQ(decoded({{"type", "Metaspace"}, {"replacement", mark}}, {mark + "a", mark + "b"}), "a b");
  EXPECT_EQ(decoded({{"type", "Strip"}, {"content", "x"}, {"start", 1}, {"stop", 2}}, {"xxax", "bxxx"}), "xabx");
  EXPECT_EQ(decoded({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}}, {"aa", "c"}), "bbc");
}

}  // namespace
}  // namespace fewbit::test
