#pragma once
// WordPiece: from the left, always the longest token; tokens inside of a word have a prefix in the vocabulary. A word
// that cannot be cut wholly, or is too long, is one unknown token.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/bpe.h"
#include "src/text/models/byte_trie.h"

namespace fewbit {

struct WordPieceModel {
  Vocabulary vocab{};
  ByteTrie tokens{};                 // of the vocabulary, with their ids
  int32_t inside = ByteTrie::kRoot;  // the trie's node behind the prefix, kNone where no token has it
  int32_t unk = -1;
  int64_t max_characters = 100;  // of a word
};

// `prefix` as "##". The vocabulary's strings are kept, the trie's views do not outlive this call.
WordPieceModel word_piece_model(Vocabulary vocab, std::string_view prefix, int32_t unk, int64_t max_characters);

// Appends the ids of words. The model must outlive it.
class WordPieceEncoder {
 public:
  explicit WordPieceEncoder(const WordPieceModel& model) : model_(model) {}
  void encode(std::string_view word, std::vector<int32_t>& ids) const;  // well-formed UTF-8

 private:
  const WordPieceModel& model_;
};

}  // namespace fewbit
