// Viterbi over the places of a word. Sums are f64 from left to right, and of equal sums the piece that begins first
// wins: a tie must fall as it does in the reference.
#include "src/text/models/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/core/error.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

constexpr double kUnknownPenalty = 10;  // of the reference, and of SentencePiece

}  // namespace

UnigramModel unigram_model(const std::vector<std::pair<std::string_view, double>>& pieces, std::optional<int32_t> unk) {
  UnigramModel m;
  m.unk = unk;
  m.vocab.reserve(pieces.size());
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::pair<std::string_view, int32_t>> strings;
  strings.reserve(pieces.size());
  for (const auto& [piece, score] : pieces) {
    const auto id = static_cast<int32_t>(m.scores.size());
    m.vocab.insert_or_assign(std::string(piece), id);
    strings.emplace_back(piece, id);
    m.scores.push_back(score);
    least = std::min(least, score);
  }
  m.pieces = ByteTrie(std::move(strings));
  m.unknown_score = least - kUnknownPenalty;
  return m;
}

void UnigramEncoder::offer(size_t end, int32_t begin, int32_t id, double score) {
  Best& b = best_[end];
  if (b.begin < 0 || score > b.score) b = {score, begin, id};
}

void UnigramEncoder::find_best(std::string_view word) {
  best_.assign(word.size() + 1, Best{});
  for (size_t at = 0; at < word.size();) {
    const double so_far = best_[at].score;
    const auto begin = static_cast<int32_t>(at);
    size_t next = at;
    const uint32_t code = next_code(word, next);
    bool is_piece = false;
    int32_t node = ByteTrie::kRoot;
    for (size_t end = at; end < word.size();) {
      node = model_.pieces.step(node, static_cast<uint8_t>(word[end]));
      if (node == ByteTrie::kNone) break;
      ++end;
      const int32_t id = model_.pieces.value(node);
      if (id < 0) continue;
      offer(end, begin, id, model_.scores[static_cast<size_t>(id)] + so_far);
      is_piece |= end == next;
    }
    if (!is_piece) {
      if (!model_.unk)
        fail(ErrorKind::unsupported,
             fmt::format("tokenizer: the text holds U+{:04X}, which is no piece of the vocabulary, and model.unk_id "
                         "names no token for it",
                         code));
      offer(next, begin, *model_.unk, model_.unknown_score + so_far);
    }
    at = next;
  }
}

void UnigramEncoder::add_unknown(std::string_view stretch, std::vector<int32_t>& ids) const {
  if (const auto it = model_.vocab.find(stretch); it != model_.vocab.end()) return ids.push_back(it->second);
  const auto lacks = [&](char c) { return (*model_.bytes)[static_cast<uint8_t>(c)] < 0; };
  if (!model_.bytes || std::any_of(stretch.begin(), stretch.end(), lacks)) return ids.push_back(*model_.unk);
  for (const char c : stretch) ids.push_back((*model_.bytes)[static_cast<uint8_t>(c)]);
}

void UnigramEncoder::encode(std::string_view word, std::vector<int32_t>& ids) {
  if (word.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail(ErrorKind::unsupported, fmt::format("tokenizer: a stretch of {} bytes without a place to split; give the text "
                                             "in pieces below 2 GiB",
                                             word.size()));
  find_best(word);
  ends_.clear();
  for (size_t end = word.size(); end > 0; end = static_cast<size_t>(best_[end].begin)) ends_.push_back(end);
  std::reverse(ends_.begin(), ends_.end());
  size_t unknown = word.size();  // where a run of unknown pieces begins; the word's end = there is none
  size_t begin = 0;
  for (const size_t end : ends_) {
    if (const int32_t id = best_[end].id; model_.unk && id == *model_.unk) {
      unknown = std::min(unknown, begin);
    } else {
      if (unknown < begin) add_unknown(word.substr(unknown, begin - unknown), ids);
      unknown = word.size();
      ids.push_back(id);
    }
    begin = end;
  }
  if (unknown < begin) add_unknown(word.substr(unknown), ids);
}

}  // namespace fewbit
