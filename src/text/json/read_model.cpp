#include "src/text/json/read_model.h"

#include <fmt/format.h>

#include "src/core/error.h"

namespace fewbit {
namespace {

// Older files have no type; what they have tells it.
std::string type_of(const JsonNode& n) {
  if (n.has("type")) return n.type();
  if (n.has("merges")) return "BPE";
  if (n.has("max_input_chars_per_word")) return "WordPiece";
  return n.type();
}

Vocabulary read_vocab(const JsonNode& n) {
  Vocabulary vocab;
  n.each_id([&](const std::string& token, int32_t id) { vocab.emplace(token, id); });
  return vocab;
}

int32_t read_token(const JsonNode& n, const Vocabulary& vocab) {
  const auto it = vocab.find(n.text());
  if (it == vocab.end()) n.expected("a token of the vocabulary");
  return it->second;
}

void refuse_settings(const JsonNode& n, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (n.has(key) && !n.at(key).is_zero()) n.at(key).refuse("null");
}

std::vector<int32_t> byte_token_ids(const Vocabulary& vocab) {
  std::vector<int32_t> ids;
  for (int b = 0; b < 256; ++b) {
    const auto it = vocab.find(fmt::format("<0x{:02X}>", b));
    ids.push_back(it == vocab.end() ? -1 : it->second);
  }
  return ids;
}

// --- BPE

// The two halves of merge `i`: "a b", or ["a", "b"] in newer files.
std::pair<std::string_view, std::string_view> read_merge(const JsonNode& merges, size_t i) {
  if (const auto pair = merges.texts_at(i)) return *pair;
  if (const auto s = merges.text_at(i)) {
    const size_t space = s->find(' ');
    if (space != std::string_view::npos && s->find(' ', space + 1) == std::string_view::npos)
      return {s->substr(0, space), s->substr(space + 1)};
  }
  merges.item(i).expected("\"a b\" or [\"a\", \"b\"]");
}

void read_merges(const JsonNode& n, BpeModel& model) {
  const size_t count = n.list_size();
  model.merges = MergeTable(count);
  const auto id_of = [&](std::string_view token, size_t i) {
    const auto it = model.vocab.find(token);
    if (it == model.vocab.end())
      fail(ErrorKind::checkpoint, fmt::format("{}[{}]: token \"{}\" is not in the vocabulary", n.where(), i, token));
    return it->second;
  };
  std::string merged;
  for (size_t i = 0; i < count; ++i) {
    const auto [left, right] = read_merge(n, i);
    merged.assign(left).append(right);
    model.merges.insert(id_of(left, i), id_of(right, i), static_cast<uint32_t>(i), id_of(merged, i));
  }
}

BpeModel read_bpe(const JsonNode& n) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!n.text(key, "").empty()) n.at(key).refuse("null");
  refuse_settings(n, {"dropout"});
  BpeModel model;
  model.vocab = read_vocab(n.at("vocab"));
  read_merges(n.at("merges"), model);
  if (n.has("unk_token")) model.unk = read_token(n.at("unk_token"), model.vocab);
  model.fuse_unk = n.flag("fuse_unk", false);
  model.ignore_merges = n.flag("ignore_merges", false);
  if (n.flag("byte_fallback", false)) model.bytes = byte_token_ids(model.vocab);
  return model;
}

// --- Unigram

UnigramModel read_unigram(const JsonNode& n) {
  refuse_settings(n, {"alpha", "nbest_size"});  // sampling
  const JsonNode list = n.at("vocab");
  const size_t count = list.list_size();
  if (count == 0 || count > static_cast<size_t>(kMaxTokenId))
    list.expected(fmt::format("between 1 and {} pieces", kMaxTokenId));
  std::vector<std::pair<std::string_view, double>> pieces;
  pieces.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto piece = list.scored_at(i);
    if (!piece) list.item(i).expected("[\"piece\", score]");
    if (piece->first.size() > kMaxTokenBytes)
      fail(ErrorKind::unsupported, fmt::format("{}: a piece of {} bytes; supported: {} at most", list.item(i).where(),
                                               piece->first.size(), kMaxTokenBytes));
    pieces.push_back(*piece);
  }
  std::optional<int32_t> unk;
  if (n.has("unk_id")) {
    unk = n.at("unk_id").id();
    if (static_cast<size_t>(*unk) >= count) n.at("unk_id").expected(fmt::format("an id below {}", count));
  }
  UnigramModel model = unigram_model(pieces, unk);
  if (n.flag("byte_fallback", false)) model.bytes = byte_token_ids(model.vocab);
  return model;
}

// --- WordPiece

WordPieceModel read_word_piece(const JsonNode& n) {
  Vocabulary vocab = read_vocab(n.at("vocab"));
  for (const auto& [token, id] : vocab)
    if (token.size() > kMaxTokenBytes)
      fail(ErrorKind::unsupported, fmt::format("{}: token {} has {} bytes; supported: {} at most",
                                               n.at("vocab").where(), id, token.size(), kMaxTokenBytes));
  const int32_t unk = read_token(n.at("unk_token"), vocab);
  const JsonNode longest = n.at("max_input_chars_per_word");
  if (longest.number() < 0) longest.expected("a count");
  const std::string prefix = n.at("continuing_subword_prefix").text_up_to(kMaxTokenBytes);
  return word_piece_model(std::move(vocab), prefix, unk, longest.number());
}

}  // namespace

TokenModel read_model(const JsonNode& n) {
  const std::string type = type_of(n);
  if (type == "BPE") return read_bpe(n);
  if (type == "Unigram") return read_unigram(n);
  if (type == "WordPiece") return read_word_piece(n);
  n.at("type").refuse("BPE, Unigram, WordPiece");
}

}  // namespace fewbit
