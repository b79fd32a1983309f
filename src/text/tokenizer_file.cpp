// Reading tokenizer.json. Every type that is not understood is refused by name: a tokenizer that is almost
// right gives numbers that are quietly wrong.
#include "src/text/tokenizer_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/mapped_file.h"
#include "src/text/byte_alphabet.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

using nlohmann::json;

constexpr int64_t kMaxId = int64_t{1} << 24;  // far above any vocabulary; keeps a wrong id from eating the memory
constexpr int kMaxDepth = 8;                  // of nested Sequences

// GPT-2's own expression, used by ByteLevel with use_regex.
constexpr std::string_view kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// A value of the file together with its place, for messages.
class Node {
 public:
  Node(const json& value, std::string file, std::string key)
      : value_(&value), file_(std::move(file)), key_(std::move(key)) {}

  const json& raw() const { return *value_; }
  std::string where() const { return file_ + ": " + key_; }
  bool has(const char* name) const {
    return value_->is_object() && value_->contains(name) && !(*value_)[name].is_null();
  }
  Node at(const char* name) const {
    if (!value_->is_object()) expected("an object");
    const Node child(value_->contains(name) ? (*value_)[name] : kNull, file_, key_.empty() ? name : key_ + "." + name);
    if (child.value_->is_null()) fail(ErrorKind::checkpoint, child.where() + " is missing");
    return child;
  }
  std::vector<Node> items() const {
    if (!value_->is_array()) expected("a list");
    std::vector<Node> out;
    for (size_t i = 0; i < value_->size(); ++i) out.emplace_back((*value_)[i], file_, key_ + fmt::format("[{}]", i));
    return out;
  }
  std::string text() const {
    if (!value_->is_string()) expected("a string");
    return value_->get<std::string>();
  }
  bool flag() const {
    if (!value_->is_boolean()) expected("true or false");
    return value_->get<bool>();
  }
  int64_t number() const {
    if (!value_->is_number_integer()) expected("an integer");
    return value_->get<int64_t>();
  }
  int32_t id() const {
    const int64_t n = number();
    if (n < 0 || n >= kMaxId) expected(fmt::format("a token id from 0 to {}", kMaxId - 1));
    return static_cast<int32_t>(n);
  }
  bool flag(const char* name, bool otherwise) const { return has(name) ? at(name).flag() : otherwise; }
  std::string text(const char* name, const char* otherwise) const { return has(name) ? at(name).text() : otherwise; }
  std::string type() const { return at("type").text(); }

  [[noreturn]] void expected(const std::string& what) const {
    fail(ErrorKind::checkpoint, fmt::format("{}: expected {}, found {}", where(), what, excerpt()));
  }
  [[noreturn]] void refuse(const std::string& supported) const {
    fail(ErrorKind::unsupported, fmt::format("{} = {} is not supported; supported: {}", where(), excerpt(), supported));
  }

 private:
  std::string excerpt() const {
    std::string s = value_->is_structured() ? (value_->is_array() ? "a list" : "an object")
                                            : value_->dump(-1, ' ', false, json::error_handler_t::replace);
    return s.size() <= 80 ? s : s.substr(0, 77) + "...";
  }
  static inline const json kNull{};
  const json* value_;
  std::string file_, key_;
};

void check_depth(const Node& n, int depth) {
  if (depth > kMaxDepth)
    fail(ErrorKind::unsupported, fmt::format("{}: more than {} nested parts", n.where(), kMaxDepth));
}

Pattern read_pattern(const Node& n) {
  if (n.has("String")) return Pattern::literal(n.at("String").text());
  if (n.has("Regex")) return Pattern::regex(n.at("Regex").text(), n.at("Regex").where());
  n.refuse("String, Regex");
}

std::string one_character(const Node& n) {
  const std::string s = n.text();
  size_t i = 0;
  if (s.empty() || (next_code(s, i), i != s.size())) n.expected("one character");
  return s;
}

// --- normalizer
// -----------------------------------------------------------------------------------------------

void read_normalizer(const Node& n, std::vector<NormalizerStep>& steps, int depth = 0) {
  check_depth(n, depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const Node& child : n.at("normalizers").items()) read_normalizer(child, steps, depth + 1);
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
    steps.emplace_back(PrependText{n.at("prepend").text()});
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceText{read_pattern(n.at("pattern")), n.at("content").text()});
  } else {
    n.at("type").refuse("Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace");
  }
}

// --- pre-tokenizer
// --------------------------------------------------------------------------------------------

SplitBehavior read_behavior(const Node& n) {
  const std::string s = n.text();
  if (s == "Removed") return SplitBehavior::removed;
  if (s == "Isolated") return SplitBehavior::isolated;
  if (s == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (s == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (s == "Contiguous") return SplitBehavior::contiguous;
  n.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// Metaspace, of older files (add_prefix_space) and newer ones (prepend_scheme).
MarkSpaces read_marks(const Node& n) {
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

SplitWords split_by(const Node& n, std::string_view regex, SplitBehavior behavior, bool invert = false) {
  return {Pattern::regex(regex, n.where()), behavior, invert};
}

void read_byte_level(const Node& n, std::vector<PreTokenizerStep>& steps) {
  if (n.flag("add_prefix_space", true)) steps.emplace_back(PrefixSpace{});
  if (n.flag("use_regex", true)) steps.emplace_back(split_by(n, kGpt2Words, SplitBehavior::isolated));
  steps.emplace_back(ByteCharacters{});
}

void read_pre_tokenizer(const Node& n, std::vector<PreTokenizerStep>& steps, int depth = 0) {
  check_depth(n, depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const Node& child : n.at("pretokenizers").items()) read_pre_tokenizer(child, steps, depth + 1);
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
    steps.emplace_back(split_by(n, "[!-/:-@\\[-`{-~\\p{P}]",
                                n.has("behavior") ? read_behavior(n.at("behavior")) : SplitBehavior::isolated));
  } else if (type == "Whitespace") {
    steps.emplace_back(split_by(n, "\\w+|[^\\w\\s]+", SplitBehavior::removed, true));
  } else if (type == "WhitespaceSplit") {
    steps.emplace_back(split_by(n, "\\s", SplitBehavior::removed));
  } else {
    n.at("type").refuse("Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit");
  }
}

// --- decoder
// --------------------------------------------------------------------------------------------------

int64_t read_count(const Node& n) {
  const int64_t count = n.number();
  if (count < 0) n.expected("a count");
  return count;
}

void read_decoder(const Node& n, std::vector<DecoderStep>& steps, int depth = 0) {
  check_depth(n, depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const Node& child : n.at("decoders").items()) read_decoder(child, steps, depth + 1);
  } else if (type == "ByteLevel") {
    steps.emplace_back(BytesFromCharacters{});
  } else if (type == "ByteFallback") {
    steps.emplace_back(BytesFromTokens{});
  } else if (type == "Fuse") {
    steps.emplace_back(FuseTokens{});
  } else if (type == "Strip") {
    steps.emplace_back(StripToken{one_character(n.at("content")), read_count(n.at("start")), read_count(n.at("stop"))});
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceText{read_pattern(n.at("pattern")), n.at("content").text()});
  } else if (type == "Metaspace") {
    steps.emplace_back(read_marks(n));
  } else {
    n.at("type").refuse("Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace");
  }
}

// --- post-processor
// -------------------------------------------------------------------------------------------

// The ids around the text, read from the template for a single text: [special …, A, special …].
void read_template(const Node& n, TokenizerFile& out) {
  std::vector<int32_t> before, after;
  bool seen_text = false;
  for (const Node& piece : n.at("single").items()) {
    if (piece.has("Sequence")) {
      const Node id = piece.at("Sequence").at("id");
      if (id.text() != "A" || seen_text) id.refuse("the text A, once");
      seen_text = true;
    } else if (piece.has("SpecialToken")) {
      const std::string name = piece.at("SpecialToken").at("id").text();
      const Node ids = n.at("special_tokens").at(name.c_str()).at("ids");
      for (const Node& id : ids.items()) (seen_text ? after : before).push_back(id.id());
    } else {
      piece.refuse("SpecialToken, Sequence");
    }
  }
  if (!seen_text) n.at("single").expected("a Sequence A");
  out.prefix.insert(out.prefix.begin(), before.begin(), before.end());
  out.suffix.insert(out.suffix.end(), after.begin(), after.end());
}

void read_post_processor(const Node& n, TokenizerFile& out, int depth = 0) {
  check_depth(n, depth);
  const std::string type = n.type();
  if (type == "Sequence") {
    for (const Node& child : n.at("processors").items()) read_post_processor(child, out, depth + 1);
  } else if (type == "TemplateProcessing") {
    read_template(n, out);
  } else if (type != "ByteLevel") {  // ByteLevel moves offsets only, which we do not keep
    n.at("type").refuse("Sequence, TemplateProcessing, ByteLevel");
  }
}

// --- model
// ----------------------------------------------------------------------------------------------------

void read_vocab(const Node& n, Vocabulary& vocab) {
  if (!n.raw().is_object()) n.expected("an object");
  vocab.reserve(n.raw().size());
  for (const auto& [token, id] : n.raw().items()) {
    if (!id.is_number_integer() || id < 0 || id >= kMaxId) n.at(token.c_str()).id();  // says what is wrong
    vocab.emplace(token, id.get<int32_t>());
  }
}

// The two halves of merge `i`: "a b", or ["a", "b"] in newer files.
std::pair<std::string, std::string> read_merge(const Node& merges, size_t i) {
  const json& m = merges.raw()[i];
  if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) return {m[0], m[1]};
  if (m.is_string()) {
    const auto& s = m.get_ref<const std::string&>();
    const size_t space = s.find(' ');
    if (space != std::string::npos && s.find(' ', space + 1) == std::string::npos)
      return {s.substr(0, space), s.substr(space + 1)};
  }
  merges.items()[i].expected("\"a b\" or [\"a\", \"b\"]");
}

void read_merges(const Node& n, BpeModel& model) {
  if (!n.raw().is_array()) n.expected("a list");
  model.merges = MergeTable(n.raw().size());
  const auto id_of = [&](const std::string& token, size_t i) {
    const auto it = model.vocab.find(token);
    if (it == model.vocab.end())
      fail(ErrorKind::checkpoint, fmt::format("{}[{}]: token \"{}\" is not in the vocabulary", n.where(), i, token));
    return it->second;
  };
  for (size_t i = 0; i < n.raw().size(); ++i) {
    const auto [left, right] = read_merge(n, i);
    model.merges.insert(id_of(left, i), id_of(right, i), static_cast<uint32_t>(i), id_of(left + right, i));
  }
}

std::vector<int32_t> byte_token_ids(const Vocabulary& vocab) {
  std::vector<int32_t> ids;
  for (int b = 0; b < 256; ++b) {
    const auto it = vocab.find(fmt::format("<0x{:02X}>", b));
    ids.push_back(it == vocab.end() ? -1 : it->second);
  }
  return ids;
}

void read_model(const Node& n, BpeModel& model) {
  if (n.has("type") ? n.type() != "BPE" : !n.has("merges")) n.at("type").refuse("BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!n.text(key, "").empty()) n.at(key).refuse("null");
  if (n.has("dropout") && n.at("dropout").raw() != 0) n.at("dropout").refuse("null");
  read_vocab(n.at("vocab"), model.vocab);
  read_merges(n.at("merges"), model);
  if (n.has("unk_token")) {
    const auto it = model.vocab.find(n.at("unk_token").text());
    if (it == model.vocab.end()) n.at("unk_token").expected("a token of the vocabulary");
    model.unk = it->second;
  }
  model.fuse_unk = n.flag("fuse_unk", false);
  model.ignore_merges = n.flag("ignore_merges", false);
  if (n.flag("byte_fallback", false)) model.bytes = byte_token_ids(model.vocab);
}

// The vocabulary's id wins over the one given here, as in the reference.
std::vector<AddedToken> read_added(const Node& n, const Vocabulary& vocab) {
  std::vector<AddedToken> out;
  for (const Node& t : n.items()) {
    AddedToken a{.content = t.at("content").text(), .id = t.at("id").id()};
    if (const auto it = vocab.find(a.content); it != vocab.end()) a.id = it->second;
    a.special = t.flag("special", false);
    a.normalized = t.flag("normalized", !a.special);
    a.lstrip = t.flag("lstrip", false);
    a.rstrip = t.flag("rstrip", false);
    a.single_word = t.flag("single_word", false);
    out.push_back(std::move(a));
  }
  return out;
}

json parse(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  try {
    return json::parse(bytes.begin(), bytes.end());
  } catch (const json::exception& e) {
    fail(ErrorKind::checkpoint, fmt::format("{}: not valid JSON: {}", path.string(), e.what()));
  }
}

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) {
  const json document = parse(path);
  const Node root(document, path.string(), "");
  TokenizerFile out;
  read_model(root.at("model"), out.model);
  if (root.has("added_tokens")) out.added = read_added(root.at("added_tokens"), out.model.vocab);
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), out.normalizer);
  if (root.has("pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), out.pre_tokenizer);
  if (root.has("post_processor")) read_post_processor(root.at("post_processor"), out);
  if (root.has("decoder")) read_decoder(root.at("decoder"), out.decoder.emplace());
  return out;
}

}  // namespace fewbit
