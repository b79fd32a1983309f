// Tokenizer: the order of events. Added tokens are cut out of the text as given; what is between them is
// normalized; added tokens that are looked for in normalized text are cut out of that; the rest falls into
// words, and words are merged. A word that comes again takes its ids from its first place in the output.
#include "src/text/tokenizer.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "formats/gguf/locate.h"
#include "src/core/error.h"
#include "src/core/strings.h"
#include "src/text/gguf_tokenizer.h"
#include "src/text/tokenizer_file.h"
#include "src/text/utf8.h"

namespace fewbit {

struct Tokenizer::Impl {
  TokenizerFile file;
  AddedTokenFinder in_raw, in_normalized;
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> added_id;
  std::vector<std::string> token;  // by id; "" = no such id
  std::vector<bool> special;       // by id
};

namespace {

constexpr size_t kCachedWord = 64;  // bytes; longer words seldom come again

BpeEncoder encoder_of(const BpeModel& m) { return BpeEncoder(m); }
UnigramEncoder encoder_of(const UnigramModel& m) { return UnigramEncoder(m); }
WordPieceEncoder encoder_of(const WordPieceModel& m) { return WordPieceEncoder(m); }

// The words of one call: texts stay where they are, so that views of words remain good as keys.
template <class Encoder>
class WordEncoder {
 public:
  WordEncoder(Encoder encoder, std::vector<int32_t>& ids) : encoder_(std::move(encoder)), ids_(ids) {}

  void encode(Words words) {
    const Words& kept = texts_.emplace_back(std::move(words));
    for (size_t i = 0; i < kept.list.size(); ++i) encode_word(kept[i]);
  }

 private:
  struct Place {
    size_t begin = 0, count = 0;
  };
  void encode_word(std::string_view word) {
    if (word.size() > kCachedWord) return encoder_.encode(word, ids_);
    const auto [it, fresh] = places_.try_emplace(word, Place{ids_.size(), 0});
    if (fresh) {
      encoder_.encode(word, ids_);
      it->second.count = ids_.size() - it->second.begin;
      return;
    }
    const Place p = it->second;
    for (size_t k = 0; k < p.count; ++k) ids_.push_back(ids_[p.begin + k]);
  }

  Encoder encoder_;
  std::vector<int32_t>& ids_;
  std::deque<Words> texts_;
  std::unordered_map<std::string_view, Place> places_;
};

// All words of a text between added tokens, which go to `ids` themselves.
template <class Encoder>
void encode_text(const TokenizerFile& f, const AddedTokenFinder& in_raw, const AddedTokenFinder& in_normalized,
                 std::string_view given, WordEncoder<Encoder> words, std::vector<int32_t>& ids) {
  for (const Segment& outer : in_raw.split(given)) {
    if (outer.id >= 0) {
      ids.push_back(outer.id);
      continue;
    }
    const std::string text = normalize(f.normalizer, std::string(given.substr(outer.begin, outer.end - outer.begin)));
    for (const Segment& inner : in_normalized.split(text)) {
      if (inner.id >= 0)
        ids.push_back(inner.id);
      else
        words.encode(pre_tokenize(f.pre_tokenizer, text.substr(inner.begin, inner.end - inner.begin),
                                  outer.begin == 0 && inner.begin == 0));
    }
  }
}

void place_token(std::vector<std::string>& tokens, int32_t id, const std::string& content) {
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  tokens[static_cast<size_t>(id)] = content;
}

// Names the tokenizer that a folder without tokenizer.json has in a form that is not read, where it has one.
[[noreturn]] void refuse_other_forms(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const char* name : {"tiktoken.model", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                           "tekken.json", "vocab.json", "vocab.txt"})
    if (std::filesystem::exists(folder / name, ignored))
      fail(ErrorKind::unsupported, (folder / name).string() +
                                       ": this form of a tokenizer is not read; supported: tokenizer.json, .gguf. Save "
                                       "the tokenizer as tokenizer.json beside it");
  fail(ErrorKind::io, (folder / "tokenizer.json").string() +
                          ": there is no such file, and texts are cut into tokens by it; fetch it from where the model "
                          "came from");
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  auto impl = std::make_unique<Impl>();
  const std::filesystem::path json = folder ? path / "tokenizer.json" : path;
  const bool has_json = json.extension() == ".json" && std::filesystem::exists(json, ignored);
  const auto gguf_file = has_json ? std::nullopt : gguf::locate(path);
  if (folder && !has_json && !gguf_file) refuse_other_forms(path);
  impl->file = gguf_file ? read_gguf_tokenizer(*gguf_file) : read_tokenizer_file(json);
  const TokenizerFile& f = impl->file;
  for (const auto& [content, id] : f.vocab()) place_token(impl->token, id, content);
  for (const AddedToken& a : f.added) {
    place_token(impl->token, a.id, a.content);
    impl->added_id.emplace(a.content, a.id);
    if (a.normalized)
      impl->in_normalized.add(normalize(f.normalizer, a.content), a);
    else
      impl->in_raw.add(a.content, a);
  }
  impl->special.assign(impl->token.size(), false);
  for (const AddedToken& a : f.added)
    if (a.special) impl->special[static_cast<size_t>(a.id)] = true;
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view given, Special special) const {
  const TokenizerFile& f = impl_->file;
  std::string repaired;
  if (!is_utf8(given)) {
    repaired = to_utf8(given);
    given = repaired;
  }
  std::vector<int32_t> ids;
  if (special == Special::add) ids = f.prefix;
  std::visit(
      [&](const auto& model) {
        encode_text(f, impl_->in_raw, impl_->in_normalized, given, WordEncoder(encoder_of(model), ids), ids);
      },
      f.model);
  if (special == Special::add) ids.insert(ids.end(), f.suffix.begin(), f.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const auto i = static_cast<size_t>(id);
    if (impl_->token[i].empty() || (skip_special && impl_->special[i])) continue;
    tokens.push_back(impl_->token[i]);
  }
  return impl_->file.decoder ? join_tokens(*impl_->file.decoder, std::move(tokens)) : join(tokens, " ");
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->token.size()); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto it = impl_->added_id.find(token); it != impl_->added_id.end()) return it->second;
  const Vocabulary& vocab = impl_->file.vocab();
  if (const auto it = vocab.find(token); it != vocab.end()) return it->second;
  return std::nullopt;
}

std::string Tokenizer::token(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    fail(ErrorKind::usage,
         "tokenizer: no token " + std::to_string(id) + "; ids are 0 to " + std::to_string(vocab_size() - 1));
  return impl_->token[static_cast<size_t>(id)];
}

std::span<const int32_t> Tokenizer::prefix() const { return impl_->file.prefix; }
std::span<const int32_t> Tokenizer::suffix() const { return impl_->file.suffix; }

std::optional<int32_t> Tokenizer::bos() const {
  if (impl_->file.prefix.empty()) return std::nullopt;
  return impl_->file.prefix.front();
}

}  // namespace fewbit
