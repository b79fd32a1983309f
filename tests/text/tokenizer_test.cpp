// Tokenizer: every golden case of every kind, the parts that the goldens do not reach by hand-computed cases, and what
// is refused. Normalizers, pre-tokenizers and decoders: tokenizer_steps_test.cpp.
#include <gtest/gtest.h>

#include "src/core/rng.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

std::string kind_path(const std::string& kind, const std::string& suffix) {
  return "goldens/tokenizers/" + kind + suffix;
}
json read_json(const std::string& relative) { return json::parse(std::ifstream(reference(relative))); }

// Random text of `n` characters below `end`, with spaces, digits and newlines among them.
std::string random_text(Rng& rng, int64_t n, uint32_t end) {
  std::string s;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t kind = rng.below(8);
    uint32_t c = static_cast<uint32_t>(kind < 3 ? rng.below(end) : 32 + rng.below(95));
    if (kind == 7) c = static_cast<uint32_t>(" \n\t\r0a'"[rng.below(7)]);
    if (c >= 0xD800 && c < 0xE000) c = 'x';
    append_code(s, c);
  }
  return s;
}

// A golden tokenizer, and the first character that decoding does not bring back: NFC changes nothing below U+0300,
// a mark for spaces (U+2581) comes back as a space. 0 = normalization loses much more.
struct Kind {
  const char* name;
  uint32_t reversible_below;
};
void PrintTo(const Kind& k, std::ostream* out) { *out << k.name; }
constexpr uint32_t kAll = 0x110000, kNfc = 0x300, kMarks = 0x2581, kNothing = 0;

class TokenizerGolden : public testing::TestWithParam<Kind> {};

TEST_P(TokenizerGolden, AllCases) {
  const std::string kind = GetParam().name;
  FEWBIT_NEEDS_REFERENCE(kind_path(kind, ".json"));
  const Tokenizer t = Tokenizer::open(reference(kind_path(kind, ".json")));
  const json cases = read_json(kind_path(kind, ".cases.json"));
  ASSERT_EQ(cases.size(), 48u);
  for (const json& c : cases) {
    const auto text = c["text"].get<std::string>();
    const auto bare = c["ids_no_special"].get<Ids>();
    EXPECT_EQ(t.encode(text), c["ids"].get<Ids>()) << text.substr(0, 100);
    EXPECT_EQ(t.encode(text, Special::none), bare) << text.substr(0, 100);
    EXPECT_EQ(t.decode(bare), c["decoded"].get<std::string>());
  }
}

TEST_P(TokenizerGolden, MergesAsStringsAndAsPairsAreTheSame) {
  const std::string kind = GetParam().name;
  FEWBIT_NEEDS_REFERENCE(kind_path(kind, ".json"));
  const Tokenizer pairs = Tokenizer::open(reference(kind_path(kind, ".json")));
  json j = read_json(kind_path(kind, ".json"));
  if (!j["model"].contains("merges")) return;  // not BPE
  for (json& m : j["model"]["merges"])
    if (m.is_array()) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  const Tokenizer strings = open_json(j);
  const std::string text = "Quantized weights, 1234 of them, don't forget\n\tthe scales.";
  EXPECT_EQ(strings.encode(text), pairs.encode(text));
  EXPECT_LT(strings.encode(text).size(), text.size());
}

TEST_P(TokenizerGolden, DecodeUndoesEncode) {
  const std::string kind = GetParam().name;
  FEWBIT_NEEDS_REFERENCE(kind_path(kind, ".json"));
  if (GetParam().reversible_below == kNothing) return;  // what it loses is in the golden cases
  const Tokenizer t = Tokenizer::open(reference(kind_path(kind, ".json")));
  Rng rng(7, kind);
  for (int i = 0; i < 200; ++i) {
    const std::string text = random_text(rng, static_cast<int64_t>(rng.below(200)), GetParam().reversible_below);
    ASSERT_EQ(t.decode(t.encode(text, Special::none)), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         testing::Values(Kind{"llama3", kAll}, Kind{"qwen2", kNfc}, Kind{"gpt2", kAll},
                                         Kind{"llama2", kNfc}, Kind{"bert-wordpiece", kNothing},
                                         Kind{"command-r", kNfc}, Kind{"deepseek-v3", kAll}, Kind{"ernie45", kMarks},
                                         Kind{"exaone-moe", kNfc}, Kind{"gemma3", kMarks}, Kind{"gemma4", kMarks},
                                         Kind{"glm45", kAll}, Kind{"granite", kAll}, Kind{"hunyuan", kAll},
                                         Kind{"kimi-k2", kAll}, Kind{"minimax-m2", kNfc}, Kind{"mistral-tekken", kAll},
                                         Kind{"o200k-harmony", kAll}, Kind{"phi4-cl100k", kAll}, Kind{"qwen35", kNfc},
                                         Kind{"smollm", kAll}, Kind{"unigram-t5", kNothing},
                                         Kind{"unigram-xlmr", kNothing}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// No kind of the reference folder is left out of the table.
TEST(TokenizerGoldens, AreAllInTheTable) {
  FEWBIT_NEEDS_REFERENCE("goldens/tokenizers");
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(reference("goldens/tokenizers")))
    found += entry.path().string().ends_with(".cases.json");
  EXPECT_EQ(found, 23);
}

TEST(Tokenizer, NamesAndIds) {
  const Tokenizer t = open_json(byte_tokenizer());
  EXPECT_EQ(t.vocab_size(), 258);
  EXPECT_EQ(t.bos(), 256);
  EXPECT_EQ(t.id_of("<eos>"), 257);
  EXPECT_EQ(t.id_of("A"), 65);
  EXPECT_EQ(t.id_of("AB"), std::nullopt);
  EXPECT_EQ(t.token(257), "<eos>");
  std::string what;
  EXPECT_EQ(error_of([&] { t.token(258); }, &what), ErrorKind::usage);
  EXPECT_NE(what.find("258"), std::string::npos);
}

TEST(Tokenizer, TemplateStandsInFrontAndBehind) {
  const Tokenizer t = open_json(byte_tokenizer(true));
  EXPECT_EQ(t.encode("ab"), (Ids{256, 97, 98, 257}));
  EXPECT_EQ(t.encode("ab", Special::none), (Ids{97, 98}));
  EXPECT_EQ(t.encode(""), (Ids{256, 257}));
  EXPECT_EQ(t.encode("", Special::none), Ids{});
}

TEST(Tokenizer, SkipSpecialLeavesThemOut) {
  const Tokenizer t = open_json(byte_tokenizer());
  const Ids ids = t.encode("a<eos>b");
  EXPECT_EQ(ids, (Ids{256, 97, 257, 98}));
  EXPECT_EQ(t.decode(ids), "<bos>a<eos>b");
  EXPECT_EQ(t.decode(ids, true), "ab");
}

TEST(Tokenizer, InvalidBytesBecomeReplacementCharacters) {
  const Tokenizer t = open_json(byte_tokenizer());
  const std::string mark = "\xEF\xBF\xBD";
  // A lone continuation, a truncated sequence (one maximal part), an encoded surrogate (three), an overlong
  // slash.
  for (const auto& [given, expected] :
       std::vector<std::pair<std::string, std::string>>{{"a\x80"
                                                         "b",
                                                         "a" + mark + "b"},
                                                        {"a\xE2\x82", "a" + mark},
                                                        {"\xED\xA0\x80", mark + mark + mark},
                                                        {"\xC0\xAF", mark + mark}}) {
    EXPECT_EQ(t.decode(t.encode(given, Special::none)), expected);
  }
}

TEST(Tokenizer, DecodeRepairsHalfCharacters) {
  const Tokenizer t = open_json(byte_tokenizer());
  const Ids half = {0xE2, 0x82, 'x'};
  EXPECT_EQ(t.decode(half), "\xEF\xBF\xBDx");
}

TEST(Tokenizer, RepeatedWordsComeFromTheCacheUnchanged) {
  const Tokenizer t = open_json(byte_tokenizer());
  std::string text;
  for (int i = 0; i < 50; ++i) text += "tea for two ";
  const Ids ids = t.encode(text, Special::none);
  ASSERT_EQ(ids.size(), text.size());
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(ids[i], text[i]) << i;
}

// --- added tokens

using Merges = std::vector<std::pair<std::string, std::string>>;

json letters() {
  json vocab = {{" ", 0}, {"?", 1}};
  for (int i = 0; i < 26; ++i) vocab[std::string(1, static_cast<char>('a' + i))] = 2 + i;
  return vocab;
}

TEST(AddedTokens, LongestAtTheLeftmostPlaceWins) {
  json j = frame(letters());
  j["added_tokens"] = {added("ab", 100), added("abc", 101), added("bcd", 102)};
  EXPECT_EQ(open_json(j).encode("abcd"), (Ids{101, 5}));
  EXPECT_EQ(open_json(j).encode("abd"), (Ids{100, 5}));
}

TEST(AddedTokens, StripFlagsTakeTheSpacesBeside) {
  json j = frame(letters());
  j["added_tokens"] = {added("<l>", 100, {{"lstrip", true}}), added("<r>", 101, {{"rstrip", true}})};
  const Tokenizer t = open_json(j);
  EXPECT_EQ(t.encode("a  <l> b"), (Ids{2, 100, 0, 3}));
  EXPECT_EQ(t.encode("a <r>  b"), (Ids{2, 0, 101, 3}));
  EXPECT_EQ(t.encode("<r>  <l>a"), (Ids{101, 100, 2}));
}

TEST(AddedTokens, SingleWordNeedsBordersOfAWord) {
  json j = frame(letters());
  j["added_tokens"] = {added("cat", 100, {{"single_word", true}})};
  const Tokenizer t = open_json(j);
  EXPECT_EQ(t.encode("a cat"), (Ids{2, 0, 100}));
  EXPECT_EQ(t.encode("cats"), (Ids{4, 2, 21, 20}));
}

TEST(AddedTokens, NormalizedOnesAreFoundInNormalizedText) {
  json j = frame(letters());
  j["normalizer"] = {{"type", "Lowercase"}};
  j["added_tokens"] = {added("CAT", 100, {{"normalized", true}}), added("DOG", 101)};
  const Tokenizer t = open_json(j);
  EXPECT_EQ(t.encode("CaT"), (Ids{100}));
  EXPECT_EQ(t.encode("DOG"), (Ids{101}));
  EXPECT_EQ(t.encode("DoG"), (Ids{5, 16, 8}));
}

// --- model

TEST(Bpe, UnknownCharacters) {
  json j = frame(letters());
  EXPECT_EQ(open_json(j).encode("aXYb"), (Ids{2, 3}));  // no unk_token: dropped
  j["model"]["unk_token"] = "?";
  EXPECT_EQ(open_json(j).encode("aXYb"), (Ids{2, 1, 1, 3}));
  j["model"]["fuse_unk"] = true;
  EXPECT_EQ(open_json(j).encode("aXYb"), (Ids{2, 1, 3}));
  EXPECT_EQ(open_json(j).encode("XY"), (Ids{1}));
}

TEST(Bpe, ByteFallbackTakesAllBytesOrNone) {
  json j = frame({{"a", 0}, {"?", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}});
  j["model"]["unk_token"] = "?";
  j["model"]["byte_fallback"] = true;
  const Tokenizer t = open_json(j);
  EXPECT_EQ(t.encode("a\u00e9"), (Ids{0, 2, 3}));
  EXPECT_EQ(t.encode("a\u00e8"), (Ids{0, 1}));  // <0xA8> is absent
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const json vocab = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"aa", 5}};
  EXPECT_EQ(open_json(frame(vocab, Merges{{"b", "c"}, {"a", "b"}})).encode("abc"), (Ids{0, 4}));
  EXPECT_EQ(open_json(frame(vocab, Merges{{"a", "b"}, {"b", "c"}})).encode("abc"), (Ids{3, 2}));
  EXPECT_EQ(open_json(frame(vocab, Merges{{"a", "a"}})).encode("aaa"), (Ids{5, 0}));
}

TEST(Bpe, IgnoreMergesTakesAWholeWord) {
  json j = frame({{"a", 0}, {"b", 1}, {"ab", 2}});
  EXPECT_EQ(open_json(j).encode("ab"), (Ids{0, 1}));
  j["model"]["ignore_merges"] = true;
  EXPECT_EQ(open_json(j).encode("ab"), (Ids{2}));
}

// The definition, quadratic: merge the first pair of the lowest rank until none is left.
std::string merge_by_definition(const std::string& word, const Merges& merges) {
  std::vector<std::string> parts;
  for (char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (size_t r = 0; r < best_rank; ++r)
        if (merges[r].first == parts[i] && merges[r].second == parts[i + 1]) best_rank = r, best = i;
    if (best_rank == merges.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::string joined;
  for (const std::string& p : parts) joined += p + "|";
  return joined;
}

TEST(Bpe, RandomMergesAgreeWithTheDefinition) {
  Rng rng(3, "bpe");
  json vocab = {{"a", 0}, {"b", 1}, {"c", 2}};
  std::vector<std::string> tokens = {"a", "b", "c"};
  Merges merges;
  while (tokens.size() < 40) {
    const std::string left = tokens[rng.below(tokens.size())], right = tokens[rng.below(tokens.size())];
    if (vocab.contains(left + right)) continue;
    vocab[left + right] = tokens.size();
    tokens.push_back(left + right);
    merges.emplace_back(left, right);
  }
  const Tokenizer t = open_json(frame(vocab, merges));
  for (int i = 0; i < 300; ++i) {
    std::string word, joined;
    for (uint64_t n = rng.below(60); n > 0; --n) word += static_cast<char>('a' + rng.below(3));
    for (int32_t id : t.encode(word)) joined += t.token(id) + "|";
    ASSERT_EQ(joined, merge_by_definition(word, merges)) << word;
  }
}

TEST(Bpe, AVeryLongWordEnds) {
  const json vocab = {{"a", 0}, {"aa", 1}, {"aaaa", 2}};
  const Tokenizer t = open_json(frame(vocab, Merges{{"a", "a"}, {"aa", "aa"}}));
  EXPECT_EQ(t.encode(std::string(1 << 20, 'a')), Ids(1 << 18, 2));
}

// --- refusals

struct Refused {
  const char* name;
  const char* patch;  // merge patch on the byte tokenizer
  ErrorKind kind;
  const char* key;
  const char* value;
};
void PrintTo(const Refused& r, std::ostream* out) { *out << r.name; }

class TokenizerRefuses : public testing::TestWithParam<Refused> {};

TEST_P(TokenizerRefuses, ByName) {
  const Refused& r = GetParam();
  json j = byte_tokenizer();
  j.merge_patch(json::parse(r.patch));
  std::string what;
  EXPECT_EQ(error_of([&] { open_json(j); }, &what), r.kind) << what;
  EXPECT_NE(what.find("tokenizer.json"), std::string::npos) << what;
  EXPECT_NE(what.find(r.key), std::string::npos) << what;
  EXPECT_NE(what.find(r.value), std::string::npos) << what;
  EXPECT_EQ(what.find('\n'), std::string::npos) << what;
}

constexpr auto kUnsupported = ErrorKind::unsupported;
constexpr auto kBroken = ErrorKind::checkpoint;
INSTANTIATE_TEST_SUITE_P(
    Cases, TokenizerRefuses,
    testing::Values(
        Refused{"WordLevel", R"({"model":{"type":"WordLevel"}})", kUnsupported, "model.type", "WordLevel"},
        Refused{"Normalizer", R"({"normalizer":{"type":"Nmt"}})", kUnsupported, "normalizer.type", "Nmt"},
        Refused{"Charsmap", R"({"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAA?"}})", kBroken,
                "normalizer.precompiled_charsmap", "base64"},
        Refused{"CharsmapTooShort", R"({"normalizer":{"type":"Precompiled","precompiled_charsmap":"CAAAAA=="}})",
                kBroken, "normalizer.precompiled_charsmap", "one of 8"},
        Refused{"NestedNormalizer",
                R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]}})", kUnsupported,
                "normalizer.normalizers[1].type", "Nmt"},
        Refused{"PreTokenizer", R"({"pre_tokenizer":{"type":"UnicodeScripts"}})", kUnsupported, "pre_tokenizer.type",
                "UnicodeScripts"},
        Refused{"Decoder", R"({"decoder":{"type":"CTC"}})", kUnsupported, "decoder.type", "CTC"},
        Refused{"PostProcessor", R"({"post_processor":{"type":"Bracket"}})", kUnsupported, "post_processor.type",
                "Bracket"},
        Refused{"Unigram", R"({"model":{"type":"Unigram","vocab":[["a",-1],["b"]]}})", kBroken, "model.vocab[1]",
                "score"},
        Refused{"UnigramUnk", R"({"model":{"type":"Unigram","vocab":[["a",-1]],"unk_id":1}})", kBroken, "model.unk_id",
                "1"},
        Refused{"UnigramSampling", R"({"model":{"type":"Unigram","vocab":[["a",-1]],"alpha":0.5}})", kUnsupported,
                "model.alpha", "0.5"},
        Refused{"WordPieceUnk", R"({"model":{"type":"WordPiece","unk_token":"[UNK]"}})", kBroken, "model.unk_token",
                "[UNK]"},
        Refused{"Prefix", R"({"model":{"continuing_subword_prefix":"##"}})", kUnsupported, "continuing_subword_prefix",
                "##"},
        Refused{"Suffix", R"({"model":{"end_of_word_suffix":"</w>"}})", kUnsupported, "end_of_word_suffix", "</w>"},
        Refused{"Dropout", R"({"model":{"dropout":0.1}})", kUnsupported, "model.dropout", "0.1"},
        Refused{"Behavior", R"({"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Sideways"}})",
                kUnsupported, "pre_tokenizer.behavior", "Sideways"},
        Refused{"Regex", R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"[a&&]"},"behavior":"Isolated"}})",
                kUnsupported, "pre_tokenizer.pattern.Regex", "&&"},
        Refused{"MissingModel", R"({"model":null})", kBroken, "model", "missing"},
        Refused{"MissingVocab", R"({"model":{"vocab":null}})", kBroken, "model.vocab", "missing"},
        Refused{"NegativeId", R"({"model":{"vocab":{"zz":-1}}})", kBroken, "model.vocab.zz", "-1"},
        Refused{"HugeId", R"({"model":{"vocab":{"zz":2000000000}}})", kBroken, "model.vocab.zz", "2000000000"},
        Refused{"MergeOfUnknown", R"({"model":{"merges":["a zz"]}})", kBroken, "model.merges[0]", "zz"},
        Refused{"MergeOfThree", R"({"model":{"merges":["a b c"]}})", kBroken, "model.merges[0]", "a b c"},
        Refused{"UnknownUnk", R"({"model":{"unk_token":"<unk>"}})", kBroken, "model.unk_token", "<unk>"},
        Refused{"TypeIsANumber", R"({"decoder":{"type":3}})", kBroken, "decoder.type", "3"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(TokenizerFile, MissingIsIo) {
  const TempDir dir;
  std::string what;
  EXPECT_EQ(error_of([&] { Tokenizer::open(dir.path()); }, &what), ErrorKind::io);
  EXPECT_NE(what.find("tokenizer.json"), std::string::npos) << what;
}

TEST(TokenizerFile, NotJson) {
  const TempDir dir;
  for (const char* text : {"", "{\"model\":", "not json", "\xff\xfe"}) {
    std::ofstream(dir / "tokenizer.json") << text;
    std::string what;
    EXPECT_EQ(error_of([&] { Tokenizer::open(dir / "tokenizer.json"); }, &what), ErrorKind::checkpoint);
    EXPECT_NE(what.find("tokenizer.json"), std::string::npos) << what;
  }
}

TEST(TokenizerFile, DeepNestingIsRefused) {
  json n = {{"type", "NFC"}};
  for (int i = 0; i < 50; ++i) n = {{"type", "Sequence"}, {"normalizers", {n}}};
  json j = byte_tokenizer();
  j["normalizer"] = n;
  std::string what;
  EXPECT_EQ(error_of([&] { open_json(j); }, &what), ErrorKind::unsupported);
}

}  // namespace
}  // namespace fewbit::test
