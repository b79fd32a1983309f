#include "src/text/models/word_piece.h"

#include <algorithm>

namespace fewbit {

WordPieceModel word_piece_model(Vocabulary vocab, std::string_view prefix, int32_t unk, int64_t max_characters) {
  WordPieceModel m;
  std::vector<std::pair<std::string_view, int32_t>> strings(vocab.begin(), vocab.end());
  m.tokens = ByteTrie(std::move(strings));
  m.inside = m.tokens.walk(ByteTrie::kRoot, prefix);
  m.unk = unk;
  m.max_characters = max_characters;
  m.vocab = std::move(vocab);
  return m;
}

void WordPieceEncoder::encode(std::string_view word, std::vector<int32_t>& ids) const {
  const auto starts = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; };
  if (std::count_if(word.begin(), word.end(), starts) > model_.max_characters) return ids.push_back(model_.unk);
  const size_t before = ids.size();
  for (size_t at = 0; at < word.size();) {
    int32_t node = at == 0 ? ByteTrie::kRoot : model_.inside, id = ByteTrie::kNone;
    size_t end = at;
    for (size_t i = at; i < word.size() && node != ByteTrie::kNone;) {
      node = model_.tokens.step(node, static_cast<uint8_t>(word[i]));
      ++i;
      if (node == ByteTrie::kNone || model_.tokens.value(node) == ByteTrie::kNone) continue;
      id = model_.tokens.value(node);
      end = i;
    }
    if (id == ByteTrie::kNone) {
      ids.resize(before);
      return ids.push_back(model_.unk);
    }
    ids.push_back(id);
    at = end;
  }
}

}  // namespace fewbit
