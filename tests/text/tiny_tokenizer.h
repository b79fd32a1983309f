#pragma once
// Small tokenizers written as JSON by the tests: a byte-level one without merges (a token is a byte), and a
// frame for vocabularies of a few strings.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "src/text/byte_alphabet.h"
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"
#include "tests/support/support.h"

namespace fewbit::test {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// vocab: {"token": id}, merges: [["a", "b"]]; everything else null.
inline json frame(const json& vocab, const json& merges = json::array()) {
  return {{"added_tokens", json::array()}, {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},      {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}}, {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

inline json added(const std::string& content, int id, const json& flags = json::object()) {
  json t = {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
  t.update(flags);
  return t;
}

inline json template_of(const json& single, const json& ids) {
  json tokens = json::object();
  for (const auto& [name, id] : ids.items()) tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", json::array()}, {"special_tokens", tokens}};
}
inline json special_piece(const std::string& name) { return {{"SpecialToken", {{"id", name}, {"type_id", 0}}}}; }
inline json text_piece() { return {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}; }

// Byte b is token b; <bos> is 256 and stands in front, <eos> is 257 and stands behind where `with_eos`.
inline json byte_tokenizer(bool with_eos = false) {
  json vocab = json::object();
  for (uint32_t b = 0; b < 256; ++b) {
    std::string s;
    append_code(s, kByteAlphabet.code_of[b]);
    vocab[s] = b;
  }
  json j = frame(vocab);
  j["added_tokens"] = {added("<bos>", 256), added("<eos>", 257)};
  j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  json single = {special_piece("<bos>"), text_piece()};
  if (with_eos) single.push_back(special_piece("<eos>"));
  j["post_processor"] = template_of(single, {{"<bos>", 256}, {"<eos>", 257}});
  j["decoder"] = {{"type", "ByteLevel"}};
  return j;
}

inline Tokenizer open_json(const json& j) {
  const TempDir dir;
  std::ofstream(dir / "tokenizer.json") << j.dump();
  return Tokenizer::open(dir.path());
}

// Runs f, which must throw an Error; its kind, and its message in *message.
template <class F>
ErrorKind error_of(const F& f, std::string* message) {
  try {
    f();
  } catch (const Error& e) {
    *message = e.what();
    return e.kind();
  }
  ADD_FAILURE() << "no error was thrown";
  *message = "";
  return ErrorKind::numeric;
}

}  // namespace fewbit::test
