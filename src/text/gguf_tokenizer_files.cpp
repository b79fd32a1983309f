#include "src/text/gguf_tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/text/gguf_tokenizer.h"
#include "src/text/gguf_words.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

using nlohmann::json;
using namespace gguf_words;

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json split_at(std::string_view regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json sequence(const char* of, json parts) { return {{"type", "Sequence"}, {of, std::move(parts)}}; }

json replace(const char* what, const char* by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}

// Strings by id; "" for ids without a token.
std::vector<std::string> tokens_of(const TokenizerFile& f) {
  std::vector<std::string> tokens;
  const auto put = [&](int32_t id, const std::string& text) {
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
    tokens[static_cast<size_t>(id)] = text;
  };
  for (const auto& [text, id] : f.bpe().vocab) put(id, text);
  for (const AddedToken& a : f.added) put(a.id, a.content);
  return tokens;
}

json merges_of(const gguf::Metadata& m, const TokenizerFile& f, const std::vector<std::string>& tokens) {
  if (!f.bpe().bytes) return m.texts("tokenizer.ggml.merges");
  json merges = json::array();
  for (const ScoredMerge& s : merges_from_scores(m, f.bpe().vocab))
    merges.push_back(tokens[static_cast<size_t>(s.left)] + ' ' + tokens[static_cast<size_t>(s.right)]);
  return merges;
}

json model_of(const gguf::Metadata& m, const TokenizerFile& f, const std::vector<std::string>& tokens) {
  json vocab = json::object();
  for (const auto& [text, id] : f.bpe().vocab) {
    if (!is_utf8(text))
      fail(ErrorKind::unsupported, m.where() + ": tokenizer.ggml.tokens[" + std::to_string(id) +
                                       "]: is not UTF-8, which a tokenizer.json must be");
    vocab[text] = id;
  }
  // Added tokens too: readers give those that the vocabulary lacks an id of their own choice.
  for (const AddedToken& a : f.added) vocab[a.content] = a.id;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", f.bpe().unk ? json(tokens[static_cast<size_t>(*f.bpe().unk)]) : json()},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", f.bpe().fuse_unk},
          {"byte_fallback", f.bpe().bytes.has_value()},
          {"ignore_merges", f.bpe().ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", merges_of(m, f, tokens)}};
}

json added_of(const TokenizerFile& f) {
  std::vector<AddedToken> added = f.added;
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  json list = json::array();
  for (const AddedToken& a : added)
    list.push_back({{"id", a.id},
                    {"content", a.content},
                    {"single_word", a.single_word},
                    {"lstrip", a.lstrip},
                    {"rstrip", a.rstrip},
                    {"normalized", a.normalized},
                    {"special", a.special}});
  return list;
}

// What stands around a text, and around two of them.
json post_processor_of(const TokenizerFile& f, const std::vector<std::string>& tokens) {
  if (f.prefix.empty() && f.suffix.empty()) return f.bpe().bytes ? json() : byte_level(false);
  json specials = json::object();
  const auto around = [&](const char* text, int type) {
    json parts = json::array();
    const auto add = [&](const std::vector<int32_t>& ids) {
      for (const int32_t id : ids) {
        const std::string& token = tokens[static_cast<size_t>(id)];
        specials[token] = {{"id", token}, {"ids", json::array({id})}, {"tokens", json::array({token})}};
        parts.push_back({{"SpecialToken", {{"id", token}, {"type_id", type}}}});
      }
    };
    add(f.prefix);
    parts.push_back({{"Sequence", {{"id", text}, {"type_id", type}}}});
    add(f.suffix);
    return parts;
  };
  const json single = around("A", 0);
  json pair = single;
  for (json& part : around("B", 1)) pair.push_back(std::move(part));
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", std::move(pair)}, {"special_tokens", specials}};
}

// Characters for bytes, or SentencePiece's marks for spaces.
void put_words(const gguf::Metadata& m, const TokenizerFile& f, json& j) {
  j["normalizer"] = nullptr;
  j["pre_tokenizer"] = nullptr;
  if (f.bpe().bytes) {
    const bool prefix = m.flag("tokenizer.ggml.add_space_prefix", true);
    json normalizers = json::array(), decoders = {replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kMark}});
    normalizers.push_back(replace(" ", kMark));
    if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    j["normalizer"] = sequence("normalizers", std::move(normalizers));
    j["decoder"] = sequence("decoders", std::move(decoders));
    return;
  }
  const SplitRule& rule = split_rule_of(m);
  if (rule.nfc) j["normalizer"] = {{"type", "NFC"}};
  j["pre_tokenizer"] = rule.regex.empty()
                           ? byte_level(true)
                           : sequence("pretokenizers", json::array({split_at(rule.regex), byte_level(false)}));
  j["decoder"] = byte_level(true);
}

std::string config_of(const gguf::Metadata& m, const TokenizerFile& f, const std::vector<std::string>& tokens) {
  json c = {{"tokenizer_class", "PreTrainedTokenizerFast"},
            {"add_bos_token", !f.prefix.empty()},
            {"add_eos_token", !f.suffix.empty()},
            {"clean_up_tokenization_spaces", false}};
  for (const auto& [name, key] :
       {std::pair{"bos_token", "bos"}, {"eos_token", "eos"}, {"pad_token", "padding"}, {"unk_token", "unknown"}}) {
    const int64_t id = m.integer(std::string("tokenizer.ggml.") + key + "_token_id", -1);
    if (id >= 0 && static_cast<size_t>(id) < tokens.size()) c[name] = tokens[static_cast<size_t>(id)];
  }
  if (const std::string chat = m.text("tokenizer.chat_template", ""); !chat.empty()) c["chat_template"] = chat;
  return c.dump(1) + "\n";
}

}  // namespace

TokenizerFiles tokenizer_files_from_gguf(const gguf::Metadata& m) {
  const TokenizerFile f = tokenizer_from_gguf(m);
  const std::vector<std::string> tokens = tokens_of(f);
  json j = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  j["added_tokens"] = added_of(f);
  put_words(m, f, j);
  j["post_processor"] = post_processor_of(f, tokens);
  j["model"] = model_of(m, f, tokens);
  return {j.dump(1) + "\n", config_of(m, f, tokens)};
}

}  // namespace fewbit
