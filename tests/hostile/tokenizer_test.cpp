// tokenizer.json: vocabularies, merges and steps that say untrue things, expressions without end.
#include <gtest/gtest.h>

#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

Hostile with(const std::string& name, const char* part, const json& value, const std::string& says = "",
             bool taken = false) {
  json j = byte_tokenizer();
  j[part] = value;
  return {name, j.dump(-1, ' ', false, json::error_handler_t::replace), says, taken};
}
Hostile with_model(const std::string& name, const json& model, const std::string& says = "", bool taken = false) {
  return with(name, "model", model, says, taken);
}

json split_at(const std::string& regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}
json in_sequences(json step, const char* list, int times) {
  for (int i = 0; i < times; ++i) step = {{"type", "Sequence"}, {list, {step}}};
  return step;
}

std::vector<Hostile> models() {
  const json bpe = byte_tokenizer()["model"];
  const auto changed = [&](const char* key, const json& v) {
    json m = bpe;
    m[key] = v;
    return m;
  };
  const json unigram = {
      {"type", "Unigram"}, {"unk_id", 0}, {"vocab", json::array({json::array({"a", -1.0}), json::array({"b", -2.0})})}};
  const auto piece = [&](const char* key, const json& v) {
    json m = unigram;
    m[key] = v;
    return m;
  };
  const json words = {{"type", "WordPiece"},
                      {"vocab", {{"[UNK]", 0}, {"a", 1}}},
                      {"unk_token", "[UNK]"},
                      {"continuing_subword_prefix", "##"},
                      {"max_input_chars_per_word", 100}};
  const auto word = [&](const char* key, const json& v) {
    json m = words;
    m[key] = v;
    return m;
  };
  const std::string evil(1'000'000, 'a');
  return {
      with_model("no model", nullptr, "model"),
      with_model("a model that is a list", json::array(), "model"),
      with_model("a model that there is not", changed("type", "WordLevel\x1b[31m"), "\\u001b"),
      with_model("a type that is a number", changed("type", 7), "type"),
      with_model("no vocabulary", changed("vocab", nullptr), "vocab"),
      with_model("a vocabulary that is a list", changed("vocab", json::array({"a"})), "vocab"),
      with_model("an id of two billion", changed("vocab", {{"a", 2'000'000'000}}), "token id"),
      with_model("an id beyond 64 bits", changed("vocab", {{"a", UINT64_MAX}}), "token id"),
      with_model("a negative id", changed("vocab", {{"a", -1}}), "token id"),
      with_model("an id with a point", changed("vocab", {{"a", 1.5}}), "integer"),
      with_model("an id that is a text", changed("vocab", {{"a", "1"}}), "integer"),
      with_model("the largest id, alone", changed("vocab", {{"a", (1 << 21) - 1}}), "", true),
      with_model("an id for two tokens", changed("vocab", {{"a", 1}, {"b", 1}}), "", true),
      with_model("no merges", changed("merges", nullptr), "merges"),
      with_model("merges that are an object", changed("merges", json::object()), "merges"),
      with_model("a merge that is a number", changed("merges", {1}), "merges"),
      with_model("a merge of one", changed("merges", json::array({json::array({"a"})})), "merges"),
      with_model("a merge of three", changed("merges", json::array({json::array({"a", "b", "c"})})), "merges"),
      with_model("a merge without a space", changed("merges", {"ab"}), "merges"),
      with_model("a merge of tokens that there are not", changed("merges", {"xyz abc"}), "vocabulary"),
      with_model("a merge whose result there is not", changed("merges", {"a b"}), "vocabulary"),
      with_model("a merge of nothing", changed("merges", {" "}), "vocabulary"),
      with_model("an unknown token that there is not", changed("unk_token", "<nothing>"), "vocabulary"),
      with_model("dropout", changed("dropout", 0.5), "dropout"),
      with_model("a suffix of words", changed("end_of_word_suffix", "</w>"), "end_of_word_suffix"),
      with_model("a flag that is a text", changed("ignore_merges", "yes"), "true or false"),
      with_model("Unigram without pieces", piece("vocab", json::array()), "pieces"),
      with_model("a piece without a score", piece("vocab", json::array({json::array({"a"})})), "score"),
      with_model("a score that is a text", piece("vocab", json::array({json::array({"a", "b"})})), "score"),
      with_model("a piece of a megabyte", piece("vocab", json::array({json::array({evil, 0.0})})), "bytes"),
      with_model("an unknown piece beyond", piece("unk_id", 7), "below 2"),
      with_model("scores without bounds",
                 piece("vocab", json::array({json::array({"a", 1e308}), json::array({"aa", 1e308})})), "", true),
      with_model("an empty piece", piece("vocab", json::array({json::array({"", 1.0}), json::array({"a", 0.0})})), "",
                 true),
      with_model("WordPiece without an unknown token", word("unk_token", "x"), "vocabulary"),
      with_model("words of less than nothing", word("max_input_chars_per_word", -1), "count"),
      with_model("words without end", word("max_input_chars_per_word", INT64_MAX), "", true),
      with_model("a prefix of a megabyte", word("continuing_subword_prefix", evil), "bytes"),
      with_model("a word of a megabyte", word("vocab", {{"[UNK]", 0}, {evil, 1}}), "bytes"),
  };
}

std::vector<Hostile> expressions() {
  std::vector<Hostile> cases;
  for (const char* regex : {"(a|a|a)*(a|a|a)*(a|a|a)*[xy][0-9]{9}", "(?:a+)+(?:a+)+(?:a+)+(?:a+)+[xy][0-9]",
                            "(?:(?:a?){99}){99}[xy][0-9]", "(?=(?:a|aa)+[xy][0-9]).",
                            "(?:(?:(?:a{1,99}){1,99}){1,9})[xy][0-9]", "(?:.|.|.)*?(?:.|.|.)*?(?:.|.|.)*?[xy][0-9]"})
    cases.push_back(with(std::string("tries everything: ") + regex, "pre_tokenizer", split_at(regex), "", true));
  cases.insert(
      cases.end(),
      {with("an expression that cannot be compiled", "pre_tokenizer", split_at("(?:((a{9999}){9999}){9999}"),
            "pre_tokenizer"),
       with("brackets in one another", "pre_tokenizer", split_at(repeated("(", 20000) + repeated(")", 20000)),
            "cannot be compiled"),
       with("classes in one another", "pre_tokenizer", split_at(repeated("[", 20000)), "pre_tokenizer"),
       with("an expression of a megabyte", "pre_tokenizer", split_at(std::string(1 << 20, 'a')), "pre_tokenizer"),
       with("an expression that is not closed", "pre_tokenizer", split_at("[a-"), "pre_tokenizer"),
       with("an expression with escape sequences", "pre_tokenizer", split_at("\x1b[2J("), "\\x1b"),
       with("an expression that calls itself", "pre_tokenizer", split_at("(?R)"), "pre_tokenizer"),
       with("a verb of PCRE2", "pre_tokenizer", split_at("(*LIMIT_MATCH=4000000000)a"), "(*"),
       with("many words in an alternative", "pre_tokenizer", split_at(repeated("abc|", 65000) + "x"), "", true),
       with("an expression that matches nothing", "pre_tokenizer", split_at(""), "", true),
       with("word ends without end", "pre_tokenizer", split_at(repeated("\\b", 1000)), "pre_tokenizer")});
  return cases;
}

std::vector<Hostile> steps() {
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(4000, 'a')}};
  json many = json::array();
  for (int i = 0; i < 1000; ++i) many.push_back({{"type", "NFC"}});
  const auto growing = [&](int times) {
    json list = json::array();
    for (int i = 0; i < times; ++i) list.push_back(replace);
    return json{{"type", "Sequence"}, {"normalizers", list}};
  };
  return {
      with("a text that grows step by step", "normalizer", growing(60)),
      with("sequences in one another", "normalizer", in_sequences({{"type", "NFC"}}, "normalizers", 50), "nested"),
      with("pre-tokenizers in one another", "pre_tokenizer",
           in_sequences({{"type", "Whitespace"}}, "pretokenizers", 50), "nested"),
      with("processors in one another", "post_processor", in_sequences({{"type", "ByteLevel"}}, "processors", 50),
           "nested"),
      with("decoders in one another", "decoder", in_sequences({{"type", "Fuse"}}, "decoders", 50), "nested"),
      with("a thousand steps", "normalizer", {{"type", "Sequence"}, {"normalizers", many}}, "normalizer"),
      with("a step that there is not", "normalizer", {{"type", "Nothing\x1b"}}, "\\u001b"),
      with("a step without a type", "normalizer", json::object(), "type"),
      with("a step that is a text", "normalizer", "NFC", "object"),
      with("a content of a megabyte", "normalizer", {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'a')}},
           "bytes"),
      with("a character map that is none", "normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}},
           "", true),
      with("a character map of noise", "normalizer",
           {{"type", "Precompiled"}, {"precompiled_charsmap", std::string(4096, 'z')}}),
      with("a character map that is not base64", "normalizer",
           {{"type", "Precompiled"}, {"precompiled_charsmap", "\x01\x02"}}),
      with("a character map that says it is long", "normalizer",
           {{"type", "Precompiled"}, {"precompiled_charsmap", "////fwAAAAA="}}),
      with("a behaviour that there is not", "pre_tokenizer",
           {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}}, "behavior"),
      with("a pattern that is neither", "pre_tokenizer",
           {{"type", "Split"}, {"pattern", {{"Glob", "a"}}}, {"behavior", "Isolated"}}, "pattern"),
      with("a mark of many characters", "pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "abc"}, {"prepend_scheme", "always"}}, "", true),
      with("a strip of less than nothing", "decoder",
           {{"type", "Strip"}, {"content", "a"}, {"start", -1}, {"stop", 0}}),
      with("a strip of everything", "decoder",
           {{"type", "Strip"}, {"content", "a"}, {"start", INT64_MAX}, {"stop", INT64_MAX}}, "", true),
      with("a strip beyond 64 bits", "decoder",
           {{"type", "Strip"}, {"content", "a"}, {"start", UINT64_MAX}, {"stop", 0}}),
      with("a template without a text", "post_processor", template_of(json::array(), json::object()), "Sequence"),
      with("a template with the text twice", "post_processor",
           template_of({text_piece(), text_piece()}, json::object())),
      with("a template of a token that there is not", "post_processor",
           template_of({special_piece("<x>"), text_piece()}, json::object()), "missing"),
      with("a template that puts an id beyond", "post_processor",
           template_of({special_piece("<x>"), text_piece()}, {{"<x>", 1 << 25}}), "token id"),
      with("a template of a million tokens", "post_processor",
           template_of(json(std::vector<json>(200'000, special_piece("<bos>"))), {{"<bos>", 256}})),
      with("a post-processor that there is not", "post_processor", {{"type", "Other"}}, "supported"),
      with("an added token of a megabyte", "added_tokens", json::array({added(std::string(1 << 20, 'a'), 300)}),
           "bytes"),
      with("an added token of nothing", "added_tokens", json::array({added("", 300)}), "", true),
      with("an added token with an id beyond", "added_tokens", json::array({added("x", 1 << 25)}), "token id"),
      with("an added token without an id", "added_tokens", json::array({json{{"content", "x"}}}), "id"),
      with("added tokens that are an object", "added_tokens", {{"a", 1}}, "list"),
      with("a token that is a number", "added_tokens", {1}, "object"),
      with("a flag that is a number", "added_tokens", json::array({added("x", 300, {{"lstrip", 1}})}), "true or false"),
  };
}

std::string many_added() {
  json list = json::array();
  for (int i = 0; i < 20'000; ++i) list.push_back(added(std::string(static_cast<size_t>(i % 500 + 1), 'a'), 300 + i));
  json j = byte_tokenizer();
  j["added_tokens"] = list;
  return j.dump();
}

class HostileTokenizer : public testing::Test {
 protected:
  std::function<void(const std::string&)> read = [this](const std::string& b) { read_tokenizer_bytes(b, dir_.path()); };

 private:
  TempDir dir_;
};

TEST_F(HostileTokenizer, BrokenJson) { expect_refused(hostile_json(byte_tokenizer().dump()), read); }
TEST_F(HostileTokenizer, Models) { expect_refused(models(), read); }
TEST_F(HostileTokenizer, Expressions) { expect_refused(expressions(), read); }
TEST_F(HostileTokenizer, Steps) { expect_refused(steps(), read); }
TEST_F(HostileTokenizer, ManyAddedTokens) { expect_contained({{"20,000 added tokens", many_added()}}, read); }

}  // namespace
}  // namespace fewbit::test
