#include "src/text/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/gguf/file.h"
#include "formats/guarded_json.h"
#include "src/core/mapped_file.h"
#include "src/core/strings.h"
#include "src/core/text/lower_case.h"
#include "src/text/gguf_words.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace gguf_words {

const SplitRule& split_rule_of(const gguf::Metadata& m) {
  const std::string name = m.text("tokenizer.ggml.pre", "default");
  std::string known;
  for (const SplitRule& r : kRules) {
    if (r.name == name) return r;
    known += fmt::format(" {}", r.name);
  }
  fail(ErrorKind::unsupported, fmt::format("{}: tokenizer.ggml.pre: found \"{}\"; known:{}", m.where(), name, known));
}

std::vector<ScoredMerge> merges_from_scores(const gguf::Metadata& m, const Vocabulary& vocab) {
  const std::vector<float> scores = m.numbers("tokenizer.ggml.scores");
  std::vector<ScoredMerge> merges;
  for (const auto& [token, id] : vocab) {
    if (static_cast<size_t>(id) >= scores.size())
      fail(ErrorKind::checkpoint,
           fmt::format("{}: tokenizer.ggml.scores: expected one for every token, found {}", m.where(), scores.size()));
    if (!is_utf8(token)) continue;
    size_t at = 0;
    for (next_code(token, at); at < token.size(); next_code(token, at)) {
      const auto left = vocab.find(std::string_view(token).substr(0, at));
      const auto right = vocab.find(std::string_view(token).substr(at));
      if (left != vocab.end() && right != vocab.end())
        merges.push_back({left->second, right->second, id, scores[static_cast<size_t>(id)]});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const ScoredMerge& a, const ScoredMerge& b) {
    return a.score != b.score ? a.score > b.score : std::tie(a.id, a.left) < std::tie(b.id, b.left);
  });
  return merges;
}

}  // namespace gguf_words

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace gguf_words;

// "" where there is none.
std::string read_file(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? json_text(path, kTableJson) : "";
}

json parse_file(const fs::path& path, const JsonBudget& budget) {
  const std::string text = read_file(path);
  if (text.empty()) return json::object();
  json tree = parse_json(text, path.string(), budget);
  if (!tree.is_object()) fail(ErrorKind::checkpoint, path.string() + ": expected a JSON object");
  return tree;
}

// --- tokenizer.json to metadata
// -------------------------------------------------------------------------------

// The regular expressions that the pre-tokenizer splits at, "" for ByteLevel's own.
void collect_splits(const json& pre, std::vector<std::string>& out) {
  const std::string type = pre.value("type", "");
  if (type == "Sequence")
    for (const json& child : pre.at("pretokenizers")) collect_splits(child, out);
  else if (type == "Split")
    out.push_back(pre.at("pattern").value("Regex", pre.at("pattern").value("String", "?")));
  else if (type == "ByteLevel" && pre.value("use_regex", true))
    out.push_back("");
}

const SplitRule& rule_of(const json& tokenizer, bool ignore_merges, const std::string& where) {
  std::vector<std::string> splits;
  if (tokenizer.contains("pre_tokenizer") && tokenizer["pre_tokenizer"].is_object())
    collect_splits(tokenizer["pre_tokenizer"], splits);
  for (const SplitRule& r : kRules)
    if (splits.size() == 1 && splits[0] == r.regex && r.ignore_merges == ignore_merges) return r;
  fail(ErrorKind::unsupported,
       fmt::format("{}: pre_tokenizer: its splitting rule ({}) has no name in GGUF that is known here", where,
                   join(splits, " then ")));
}

std::vector<std::pair<std::string, std::string>> merges_of(const json& tokenizer) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const json& m : tokenizer.at("model").at("merges")) {
    if (m.is_array()) {
      out.emplace_back(m.at(0).get<std::string>(), m.at(1).get<std::string>());
    } else {
      const auto& s = m.get_ref<const std::string&>();
      out.emplace_back(s.substr(0, s.find(' ')), s.substr(s.find(' ') + 1));
    }
  }
  return out;
}

struct Tokens {
  std::vector<std::string> text;
  std::vector<int32_t> type;
};

Tokens tokens_of(const TokenizerFile& f, int64_t vocab) {
  int64_t count = vocab;
  for (const auto& [token, id] : f.bpe().vocab) count = std::max<int64_t>(count, id + 1);
  for (const AddedToken& a : f.added) count = std::max<int64_t>(count, a.id + 1);
  Tokens t;
  for (int64_t id = 0; id < count; ++id) t.text.push_back(fmt::format("[PAD{}]", id));
  t.type.assign(static_cast<size_t>(count), kUnused);
  const auto put = [&](int32_t id, const std::string& text, TokenType type) {
    t.text[static_cast<size_t>(id)] = text;
    t.type[static_cast<size_t>(id)] = type;
  };
  for (const auto& [token, id] : f.bpe().vocab) put(id, token, kNormal);
  if (f.bpe().bytes)
    for (const int32_t id : *f.bpe().bytes)
      if (id >= 0) t.type[static_cast<size_t>(id)] = kByte;
  for (const AddedToken& a : f.added) put(a.id, a.content, a.special ? kControl : kUserDefined);
  if (f.bpe().unk) t.type[static_cast<size_t>(*f.bpe().unk)] = kUnknown;
  return t;
}

// A token's score is the rank of the first merge that makes it, negated: the order in which pairs merge.
std::vector<float> scores_of(const json& tokenizer, const TokenizerFile& f, const Tokens& tokens) {
  const auto merges = merges_of(tokenizer);
  std::vector<float> scores(tokens.text.size(), -static_cast<float>(merges.size()));
  for (size_t id = 0; id < scores.size(); ++id)
    if (tokens.type[id] != kNormal) scores[id] = 0;
  for (size_t rank = merges.size(); rank-- > 0;)
    scores[static_cast<size_t>(f.bpe().vocab.at(merges[rank].first + merges[rank].second))] = -static_cast<float>(rank);
  return scores;
}

std::string token_text(const json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  return it->is_object() ? it->value("content", "") : "";
}

std::string chat_template(const fs::path& dir, const json& config) {
  if (std::string file = read_file(dir / "chat_template.jinja"); !file.empty()) return file;
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_array())
    for (const json& named : *it)
      if (named.value("name", "") == "default") return named.value("template", "");
  return "";
}

void put_special(const fs::path& dir, const TokenizerFile& f, const Tokens& tokens, gguf::Metadata& m) {
  const json config = parse_file(dir / "tokenizer_config.json", kConfigJson);
  const auto id_of = [&](const std::string& text) {
    const auto it = text.empty() ? tokens.text.end() : std::find(tokens.text.begin(), tokens.text.end(), text);
    return it == tokens.text.end() ? -1 : it - tokens.text.begin();
  };
  int64_t bos = -1, eos = -1;
  for (const auto& [key, name, id] : {std::tuple{"bos_token", "bos", &bos}, {"eos_token", "eos", &eos}}) {
    *id = id_of(token_text(config, key));
    const json ids = parse_file(dir / "config.json", kConfigJson);
    const std::string in_config = std::string(name) + "_token_id";
    if (*id < 0 && ids.contains(in_config) && ids[in_config].is_number_integer()) *id = ids[in_config].get<int64_t>();
    if (*id >= 0) m.set("tokenizer.ggml." + in_config, static_cast<uint32_t>(*id));
  }
  if (const int64_t pad = id_of(token_text(config, "pad_token")); pad >= 0)
    m.set("tokenizer.ggml.padding_token_id", static_cast<uint32_t>(pad));
  if (f.bpe().unk) m.set("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(*f.bpe().unk));
  const auto adds = [&](const std::vector<int32_t>& ids, int64_t token, const char* what) {
    if (ids.empty()) return false;
    if (ids.size() > 1 || ids[0] != token)
      fail(ErrorKind::unsupported,
           fmt::format("{}: post_processor: GGUF can put {} at an end of the text and nothing else",
                       (dir / "tokenizer.json").string(), what));
    return true;
  };
  m.set("tokenizer.ggml.add_bos_token", adds(f.prefix, bos, "the BOS token"));
  m.set("tokenizer.ggml.add_eos_token", adds(f.suffix, eos, "the EOS token"));
  if (const std::string chat = chat_template(dir, config); !chat.empty()) m.set("tokenizer.chat_template", chat);
}

bool prepends_space(const TokenizerFile& f) {
  for (const NormalizerStep& s : f.normalizer)
    if (std::holds_alternative<PrependText>(s)) return true;
  for (const PreTokenizerStep& s : f.pre_tokenizer)
    if (const auto* marks = std::get_if<MarkSpaces>(&s)) return marks->scheme != PrependScheme::never;
  return false;
}

// --- metadata to a tokenizer
// ----------------------------------------------------------------------------------

// Vocabulary and added tokens; ids without use are left out.
void take_tokens(const gguf::Metadata& m, TokenizerFile& f) {
  const std::vector<std::string>& tokens = m.texts("tokenizer.ggml.tokens");
  std::vector<int64_t> types = m.integers("tokenizer.ggml.token_type");
  if (types.empty()) types.assign(tokens.size(), kNormal);
  if (types.size() != tokens.size())
    fail(ErrorKind::checkpoint, fmt::format("{}: tokenizer.ggml.token_type: expected {} entries, found {}", m.where(),
                                            tokens.size(), types.size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (types[i] == kControl || types[i] == kUserDefined)
      f.added.push_back({.content = tokens[i], .id = id, .special = types[i] == kControl});
    else if (types[i] != kUnused)
      f.bpe().vocab.emplace(tokens[i], id);
    if (types[i] == kUnknown) f.bpe().unk = id;
  }
}

// The spaces behind a special token belong to it in Phi-3's tokenizers. GGUF has no word for that: llama.cpp
// knows it by the model's name, with three exceptions.
void take_phi3_spaces(const gguf::Metadata& m, TokenizerFile& f) {
  const std::string name = lower_case(m.text("general.name", ""));
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) return;
  for (AddedToken& t : f.added) t.rstrip = t.content != "<unk>" && t.content != "<s>" && t.content != "<|endoftext|>";
}

void take_merges(const gguf::Metadata& m, BpeModel& model) {
  const std::vector<std::string>& merges = m.texts("tokenizer.ggml.merges");
  model.merges = MergeTable(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const size_t space = merges[rank].find(' ', 1);
    const auto id_of = [&](const std::string& token) {
      const auto it = model.vocab.find(token);
      if (space == std::string::npos || it == model.vocab.end())
        fail(ErrorKind::checkpoint,
             fmt::format("{}: tokenizer.ggml.merges[{}]: \"{}\" does not join two tokens to a third", m.where(), rank,
                         merges[rank]));
      return it->second;
    };
    const std::string left = merges[rank].substr(0, space), right = merges[rank].substr(space + 1);
    model.merges.insert(id_of(left), id_of(right), static_cast<uint32_t>(rank), id_of(left + right));
  }
}

// The merges of the highest score come first; of equal scores, and so of equal ranks, the leftmost pair.
void take_scores(const gguf::Metadata& m, BpeModel& model) {
  const std::vector<ScoredMerge> merges = merges_from_scores(m, model.vocab);
  model.merges = MergeTable(merges.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    if (i > 0 && merges[i].score != merges[i - 1].score) ++rank;
    model.merges.insert(merges[i].left, merges[i].right, rank, merges[i].id);
  }
}

void take_byte_characters(const gguf::Metadata& m, TokenizerFile& f) {
  const SplitRule& rule = split_rule_of(m);
  take_merges(m, f.bpe());
  f.bpe().ignore_merges = rule.ignore_merges;
  if (rule.nfc) f.normalizer.emplace_back(UnicodeForm::nfc);
  f.pre_tokenizer.emplace_back(
      SplitWords{Pattern::regex(rule.regex.empty() ? kGpt2 : rule.regex, m.where()), SplitBehavior::isolated, false});
  f.pre_tokenizer.emplace_back(ByteCharacters{});
  f.decoder.emplace().emplace_back(BytesFromCharacters{});
}

void take_sentence_pieces(const gguf::Metadata& m, TokenizerFile& f) {
  take_scores(m, f.bpe());
  std::vector<int32_t> bytes;
  for (int b = 0; b < 256; ++b) {
    const auto it = f.bpe().vocab.find(fmt::format("<0x{:02X}>", b));
    bytes.push_back(it == f.bpe().vocab.end() ? -1 : it->second);
  }
  f.bpe().bytes = std::move(bytes);
  f.bpe().fuse_unk = true;
  const bool prefix = m.flag("tokenizer.ggml.add_space_prefix", true);
  if (prefix) f.normalizer.emplace_back(PrependText{kMark});
  f.normalizer.emplace_back(ReplaceText{Pattern::literal(" "), kMark});
  std::vector<DecoderStep> decoder;
  decoder.emplace_back(ReplaceText{Pattern::literal(kMark), " "});
  decoder.emplace_back(BytesFromTokens{});
  decoder.emplace_back(FuseTokens{});
  if (prefix) decoder.emplace_back(StripToken{" ", 1, 0});
  f.decoder = std::move(decoder);
}

}  // namespace

gguf::Metadata tokenizer_to_gguf(const fs::path& dir, int64_t vocab) {
  const fs::path path = dir / "tokenizer.json";
  gguf::Metadata m(path.string());
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    m.set("tokenizer.ggml.model", std::string(kNoTokenizer));
    return m;
  }
  const TokenizerFile f = read_tokenizer_file(path);  // checks all that is read below
  if (!std::holds_alternative<BpeModel>(f.model))
    fail(ErrorKind::unsupported, path.string() + ": model.type: only BPE can be written as GGUF here");
  const json tokenizer = parse_file(path, kTableJson);
  const Tokens tokens = tokens_of(f, vocab);
  if (f.bpe().bytes) {
    m.set("tokenizer.ggml.model", std::string("llama"));
    m.set("tokenizer.ggml.pre", std::string("default"));
    m.set("tokenizer.ggml.scores", gguf::Array(scores_of(tokenizer, f, tokens)));
    m.set("tokenizer.ggml.add_space_prefix", prepends_space(f));
  } else {
    m.set("tokenizer.ggml.model", std::string("gpt2"));
    m.set("tokenizer.ggml.pre", std::string(rule_of(tokenizer, f.bpe().ignore_merges, path.string()).name));
    std::vector<std::string> merges;
    for (const auto& [left, right] : merges_of(tokenizer)) merges.push_back(left + ' ' + right);
    m.set("tokenizer.ggml.merges", gguf::Array(std::move(merges)));
  }
  put_special(dir, f, tokens, m);
  m.set("tokenizer.ggml.tokens", gguf::Array(tokens.text));
  m.set("tokenizer.ggml.token_type", gguf::Array(tokens.type));
  return m;
}

bool has_no_tokenizer(const gguf::Metadata& m) {
  const std::string model = m.text("tokenizer.ggml.model", kNoTokenizer);
  return model == kNoTokenizer || model == "no_vocab";
}

TokenizerFile tokenizer_from_gguf(const gguf::Metadata& m) {
  const std::string model = m.text("tokenizer.ggml.model");
  if (has_no_tokenizer(m)) fail(ErrorKind::checkpoint, m.where() + ": the file has no tokenizer");
  if (model != "gpt2" && model != "llama")
    fail(ErrorKind::unsupported,
         fmt::format("{}: tokenizer.ggml.model: found \"{}\"; supported: gpt2, llama", m.where(), model));
  TokenizerFile f;
  take_tokens(m, f);
  take_phi3_spaces(m, f);
  const bool pieces = model == "llama";
  if (pieces)
    take_sentence_pieces(m, f);
  else
    take_byte_characters(m, f);
  if (m.flag("tokenizer.ggml.add_bos_token", pieces || split_rule_of(m).bos))
    f.prefix = {static_cast<int32_t>(m.integer("tokenizer.ggml.bos_token_id"))};
  if (m.flag("tokenizer.ggml.add_eos_token", false))
    f.suffix = {static_cast<int32_t>(m.integer("tokenizer.ggml.eos_token_id"))};
  return f;
}

TokenizerFile read_gguf_tokenizer(const fs::path& path) {
  const MappedFile file(path);
  return tokenizer_from_gguf(gguf::parse(file.bytes(), path.string()).metadata);
}

}  // namespace fewbit
