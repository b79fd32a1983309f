#pragma once
// Unigram: of all ways to cut a word into pieces of the vocabulary, the one with the largest sum of scores. A character
// that is no piece itself may stand as unknown, at a score 10 below the least of all; unknown neighbours join.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/bpe.h"
#include "src/text/models/byte_trie.h"

namespace fewbit {

struct UnigramModel {
  Vocabulary vocab{};
  std::vector<double> scores{};  // natural logarithms, by id
  ByteTrie pieces{};             // of the vocabulary, with their ids
  double unknown_score = 0;
  std::optional<int32_t> unk{};
  std::optional<std::vector<int32_t>> bytes{};  // byte fallback, as in BpeModel: an unknown stretch is all bytes or unk
};

// Pieces in the order of their ids; of equal ones the last id counts. Every score must be finite.
UnigramModel unigram_model(const std::vector<std::pair<std::string_view, double>>& pieces, std::optional<int32_t> unk);

// Appends the ids of words, in time linear in the word's length times that of the longest piece, with 16 bytes for
// each byte of the word; keeps that memory between words. The model must outlive it.
class UnigramEncoder {
 public:
  explicit UnigramEncoder(const UnigramModel& model) : model_(model) {}
  // Well-formed UTF-8. Error{unsupported} where the word needs an unknown token and the model has none.
  void encode(std::string_view word, std::vector<int32_t>& ids);

 private:
  struct Best {  // of the cuts that end at a place
    double score = 0;
    int32_t begin = -1, id = -1;  // of the last piece; begin -1 = no cut ends here
  };
  void find_best(std::string_view word);
  void offer(size_t end, int32_t begin, int32_t id, double score);
  void add_unknown(std::string_view stretch, std::vector<int32_t>& ids) const;

  const UnigramModel& model_;
  std::vector<Best> best_{};
  std::vector<size_t> ends_{};  // of the pieces of the best cut, the last first
};

}  // namespace fewbit
