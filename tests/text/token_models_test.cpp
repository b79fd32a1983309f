// The models beside BPE and what belongs to them: the trie, Unigram, WordPiece, the character map, BERT's clean-up.
// The small cases are computed by hand or by the definition.
#include <gtest/gtest.h>

#include <cmath>

#include "src/core/rng.h"
#include "src/text/models/byte_trie.h"
#include "src/text/unicode/charsmap.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

TEST(ByteTrie, FindsWhatItHas) {
  const ByteTrie t({{"b", 1}, {"ab", 2}, {"abc", 3}, {"", 4}, {"b", 5}, {"\xff\x00z", 6}});
  const auto value = [&](std::string_view s) {
    const int32_t node = t.walk(ByteTrie::kRoot, s);
    return node == ByteTrie::kNone ? -2 : t.value(node);
  };
  EXPECT_EQ(value("b"), 5);  // the last of equal ones
  EXPECT_EQ(value("a"), -1);
  EXPECT_EQ(value("ab"), 2);
  EXPECT_EQ(value("abc"), 3);
  EXPECT_EQ(value("abcd"), -2);
  EXPECT_EQ(value("c"), -2);
  EXPECT_EQ(value(""), -1);
  EXPECT_EQ(ByteTrie().walk(ByteTrie::kRoot, "a"), ByteTrie::kNone);
}

TEST(ByteTrie, AgreesWithAMap) {
  Rng rng(5, "trie");
  std::map<std::string, int32_t> map;
  const auto random = [&] {
    std::string s;
    for (uint64_t n = 1 + rng.below(5); n > 0; --n) s += static_cast<char>(rng.below(4) * 85);
    return s;
  };
  for (int32_t i = 0; i < 200; ++i) map.emplace(random(), i);
  const ByteTrie t(std::vector<std::pair<std::string_view, int32_t>>(map.begin(), map.end()));
  for (int i = 0; i < 1000; ++i) {
    const std::string s = random();
    const int32_t node = t.walk(ByteTrie::kRoot, s);
    EXPECT_EQ(node == ByteTrie::kNone ? -1 : t.value(node), map.contains(s) ? map[s] : -1);
  }
}

// --- Unigram

using Pieces = std::vector<std::pair<std::string, double>>;

json unigram(const Pieces& pieces, int unk = 0) {
  json j = frame(json::object());
  j["model"] = {{"type", "Unigram"}, {"unk_id", unk}, {"vocab", pieces}, {"byte_fallback", false}};
  return j;
}

TEST(Unigram, TakesTheBestSum) {
  const Pieces pieces = {{"?", 0}, {"a", -1}, {"b", -1}, {"ab", -1.5}, {"abb", -4}, {"bb", -3}};
  const Tokenizer t = open_json(unigram(pieces));
  EXPECT_EQ(t.encode("ab"), (Ids{3}));
  EXPECT_EQ(t.encode("abb"), (Ids{3, 2}));  // -2.5 against -3, -4, -4
  EXPECT_EQ(t.encode("bb"), (Ids{2, 2}));
  EXPECT_EQ(t.encode(""), Ids{});
}

TEST(Unigram, OfEqualSumsTheLastPieceThatBeginsFirstWins) {
  EXPECT_EQ(open_json(unigram({{"?", -9}, {"a", -1}, {"aa", -2}})).encode("aaa"), (Ids{1, 2}));
  EXPECT_EQ(open_json(unigram({{"?", -9}, {"a", -1}, {"b", -1}, {"ab", -2}})).encode("ab"), (Ids{3}));
}

TEST(Unigram, UnknownNeighboursJoin) {
  json j = unigram({{"?", 0}, {"a", -1}});
  EXPECT_EQ(open_json(j).encode("xya\u00e9a"), (Ids{0, 1, 0, 1}));
  EXPECT_EQ(open_json(j).encode("xy"), (Ids{0}));
  j["model"]["unk_id"] = nullptr;
  std::string what;
  EXPECT_EQ(error_of([&] { open_json(j).encode("a\u00e9"); }, &what), ErrorKind::unsupported);
  EXPECT_NE(what.find("U+00E9"), std::string::npos) << what;
  EXPECT_EQ(open_json(j).encode("aa"), (Ids{1, 1}));
}

TEST(Unigram, ByteFallbackTakesAllBytesOrNone) {
  json j = unigram({{"?", 0}, {"a", -1}, {"<0xC3>", -9}, {"<0xA9>", -9}});
  EXPECT_EQ(open_json(j).encode("a\u00e9"), (Ids{1, 0}));
  j["model"]["byte_fallback"] = true;
  EXPECT_EQ(open_json(j).encode("a\u00e9"), (Ids{1, 2, 3}));
  EXPECT_EQ(open_json(j).encode("a\u00e8"), (Ids{1, 0}));
  EXPECT_EQ(open_json(j).encode("\u00e9\u00e8"), (Ids{0}));  // joined, and <0xA8> is absent
}

// The definition: the largest sum over all cuts.
double best_sum(const std::string& word, const std::map<std::string, double>& score) {
  if (word.empty()) return 0;
  double best = -INFINITY;
  for (size_t n = 1; n <= word.size(); ++n)
    if (const auto it = score.find(word.substr(0, n)); it != score.end())
      best = std::max(best, it->second + best_sum(word.substr(n), score));
  return best;
}

TEST(Unigram, RandomPiecesAgreeWithTheDefinition) {
  Rng rng(4, "unigram");
  Pieces pieces = {{"?", 0}, {"a", -3}, {"b", -3}, {"c", -3}};
  std::map<std::string, double> score(pieces.begin() + 1, pieces.end());
  while (score.size() < 30) {
    std::string s;
    for (uint64_t n = 2 + rng.below(4); n > 0; --n) s += static_cast<char>('a' + rng.below(3));
    const double value = -static_cast<double>(1 + rng.below(1000)) / 64;
    if (score.emplace(s, value).second) pieces.emplace_back(s, value);
  }
  const Tokenizer t = open_json(unigram(pieces));
  for (int i = 0; i < 200; ++i) {
    std::string word, joined;
    for (uint64_t n = rng.below(12); n > 0; --n) word += static_cast<char>('a' + rng.below(3));
    double sum = 0;
    for (const int32_t id : t.encode(word)) {
      joined += t.token(id);
      sum += score.at(t.token(id));
    }
    ASSERT_EQ(joined, word);
    ASSERT_EQ(sum, best_sum(word, score)) << word;  // multiples of 1/64 add exactly
  }
}

TEST(Unigram, AVeryLongWordEnds) {
  const Tokenizer t = open_json(unigram({{"?", -9}, {"a", -4}, {"aaaa", -1}}));
  EXPECT_EQ(t.encode(std::string(1 << 20, 'a')), Ids(1 << 18, 2));
  std::string what;
  EXPECT_EQ(error_of(
                [&] {
                  open_json(unigram({{"?", 0}, {std::string(2000, 'a'), -1}}));
                },
                &what),
            ErrorKind::unsupported);
  EXPECT_NE(what.find("model.vocab[1]"), std::string::npos) << what;
}

// --- WordPiece

json word_piece(const json& vocab) {
  json j = frame(json::object());
  j["model"] = {{"type", "WordPiece"},
                {"vocab", vocab},
                {"unk_token", "[UNK]"},
                {"continuing_subword_prefix", "##"},
                {"max_input_chars_per_word", 8}};
  j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  j["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  return j;
}

TEST(WordPiece, LongestFirst) {
  const Tokenizer t = open_json(word_piece({{"[UNK]", 0},
                                            {"un", 1},
                                            {"##aff", 2},
                                            {"##able", 3},
                                            {"##a", 4},
                                            {"u", 5},
                                            {"##", 6},
                                            {"\u00e9", 7},
                                            {",", 8}}));
  EXPECT_EQ(t.encode("unaff"), (Ids{1, 2}));
  EXPECT_EQ(t.encode("unable"), (Ids{1, 3}));
  EXPECT_EQ(t.encode("ua un"), (Ids{5, 4, 1}));
  EXPECT_EQ(t.encode("unx, \u00e9"), (Ids{0, 8, 7}));  // what cannot be cut wholly is unknown wholly
  EXPECT_EQ(t.encode("##"), (Ids{0, 0}));              // two words of punctuation; ## is no beginning
  EXPECT_EQ(t.encode("unaaaaaa"), (Ids{1, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(t.encode("unaaaaaaa"), (Ids{0}));  // nine characters
}

TEST(WordPiece, DecoderJoinsAndCleansUp) {
  const std::vector<std::string> words = {"i", "do", "##n", "n't", "know", ".", "'s"};
  json vocab = {{"[UNK]", 0}};
  for (const std::string& w : words) vocab.emplace(w, vocab.size());
  const json j = word_piece(vocab);
  const Tokenizer t = open_json(j);
  EXPECT_EQ(t.decode(Ids{1, 2, 4, 5, 6}), "i don't know.");
  EXPECT_EQ(t.decode(Ids{2, 3, 7}), "don's");
  json plain = j;
  plain["decoder"]["cleanup"] = false;
  EXPECT_EQ(open_json(plain).decode(Ids{1, 2, 4, 6}), "i do n't .");
}

// --- text

std::string normalized(const json& normalizer, const std::string& text) {
  json j = byte_tokenizer();
  j["normalizer"] = normalizer;
  const Tokenizer t = open_json(j);
  return t.decode(t.encode(text, Special::none));
}

TEST(BertNormalizer, Steps) {
  const auto bert = [](bool clean, bool spaced, const json& strip, bool lower) -> json {
    return {{"type", "BertNormalizer"},
            {"clean_text", clean},
            {"handle_chinese_chars", spaced},
            {"strip_accents", strip},
            {"lowercase", lower}};
  };
  EXPECT_EQ(normalized(bert(true, false, false, false), std::string("a\x01\0b\tc\u00a0\ufffd\u200b", 14)), "ab c ");
  EXPECT_EQ(normalized(bert(false, true, false, false), "a\u6f22\u5b57b\u3042"), "a \u6f22  \u5b57 b\u3042");
  EXPECT_EQ(normalized(bert(false, false, true, false), "\u00c9\u0939\u093f"), "E\u0939\u093f");  // spacing marks stay
  EXPECT_EQ(normalized(bert(false, false, nullptr, true), "\u00c9"), "e");  // null: as lowercase says
  EXPECT_EQ(normalized(bert(false, false, nullptr, false), "\u00c9"), "\u00c9");
  EXPECT_EQ(normalized({{"type", "StripAccents"}}, "e\u0301\u0939\u093f"), "e\u0939");
}

TEST(BertProcessing, StandsAround) {
  json j = byte_tokenizer();
  j["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"<eos>", 257}}, {"cls", {"<bos>", 256}}};
  EXPECT_EQ(open_json(j).encode("a"), (Ids{256, 97, 257}));
}

// --- character map

std::string base64(const std::string& bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string three = (bytes.substr(i, 3) + std::string(2, '\0')).substr(0, 3);
    const uint32_t v =
        static_cast<uint8_t>(three[0]) << 16 | static_cast<uint8_t>(three[1]) << 8 | static_cast<uint8_t>(three[2]);
    for (const int shift : {18, 12, 6, 0}) out += digits[v >> shift & 63];
  }
  const size_t padding = (3 - bytes.size() % 3) % 3;
  return out.substr(0, out.size() - padding) + std::string(padding, '=');
}

std::string words_of(const std::vector<uint32_t>& units) {
  std::string s;
  for (const uint32_t u : units)
    for (const int shift : {0, 8, 16, 24}) s += static_cast<char>(u >> shift & 0xFF);
  return s;
}

// A double array with the key "a" alone: the root's children are at 256 ^ byte, the value of "a" at 512.
std::string map_of_a(uint32_t value, const std::string& texts) {
  std::vector<uint32_t> units(1024, 0x80000000);  // values are no label
  units[0] = 256 << 10;
  units[256 ^ 'a'] = 'a' | 1 << 8 | (256 ^ 'a' ^ 512) << 10;
  units[512] = 0x80000000 | value;
  return base64(words_of({4 * 1024}) + words_of(units) + texts);
}

TEST(Charsmap, ReplacesWhatItHas) {
  const Charsmap map = Charsmap::from_base64(map_of_a(4, std::string("xyz\0bcd\0", 8)), "file: key");
  EXPECT_EQ(map.apply("a1aa", 100), "bcd1bcdbcd");
  EXPECT_EQ(map.apply("", 100), "");
  // A cluster that begins with a key is that key, unless it has six bytes or more.
  EXPECT_EQ(map.apply("a\u0301b", 100), "bcdb");
  EXPECT_EQ(map.apply("a\u0301\u0301\u0301", 100), "bcd\u0301\u0301\u0301");
  std::string what;
  EXPECT_EQ(error_of([&] { map.apply("aaa", 8); }, &what), ErrorKind::unsupported);
}

TEST(Charsmap, RefusesWhatPointsOutside) {
  const auto refused = [](const std::string& map, const std::string& says) {
    std::string what;
    EXPECT_EQ(error_of([&] { Charsmap::from_base64(map, "file: key").apply("a", 100); }, &what), ErrorKind::checkpoint);
    EXPECT_NE(what.find(says), std::string::npos) << what;
    EXPECT_EQ(what.rfind("file: key", 0), 0u) << what;
  };
  refused(map_of_a(9, "xyz"), "byte 9");
  refused(map_of_a(0, "\xff"), "UTF-8");
  refused(map_of_a(0, std::string(2000, 'x')), "1024");
  refused(base64(words_of({4, 1 << 30})), "unit");
  refused(base64(words_of({6, 0, 0})), "one of 6");
  refused(base64("abc"), "fewer than 4");
  refused("a", "base64");
  refused("ab!=", "character 2");
}

// --- limits

TEST(TokenizerLimits, TextThatGrowsWithoutEndIsRefused) {
  const json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  json j = byte_tokenizer();
  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", json(40, twice)}};
  std::string what;
  EXPECT_EQ(error_of([&] { open_json(j).encode("a"); }, &what), ErrorKind::unsupported);
  EXPECT_NE(what.find("bytes"), std::string::npos) << what;
  j["normalizer"]["normalizers"] = json(100, twice);
  EXPECT_EQ(error_of([&] { open_json(j); }, &what), ErrorKind::unsupported);
  EXPECT_NE(what.find("64 at most"), std::string::npos) << what;
  j["normalizer"] = twice;
  j["normalizer"]["content"] = std::string(5000, 'a');
  EXPECT_EQ(error_of([&] { open_json(j); }, &what), ErrorKind::unsupported);
  EXPECT_NE(what.find("normalizer.content"), std::string::npos) << what;
}

TEST(TokenizerLimits, ADecoderThatGrowsWithoutEndIsRefused) {
  const json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  json j = frame({{"a", 0}});
  j["decoder"] = {{"type", "Sequence"}, {"decoders", json(40, twice)}};
  std::string what;
  EXPECT_EQ(error_of([&] { open_json(j).decode(Ids{0}); }, &what), ErrorKind::unsupported);
}

TEST(TokenizerLimits, LongAddedTokensAreRefused) {
  json j = byte_tokenizer();
  j["added_tokens"].push_back(added(std::string(2000, 'a'), 258));
  std::string what;
  EXPECT_EQ(error_of([&] { open_json(j); }, &what), ErrorKind::unsupported);
  EXPECT_NE(what.find("added_tokens[2].content"), std::string::npos) << what;
}

}  // namespace
}  // namespace fewbit::test
