#pragma once
// The draw from several texts, each with its weight (docs/calibration.md).
#include <string>
#include <vector>

#include "src/text/corpus.h"

namespace fewbit {

struct CalibPart {
  CalibText text;
  std::vector<std::string> documents{};  // instead of its text: each is tokenized by itself
  bool chat = false;                     // the documents hold their special tokens, BOS included
  double weight = 1;                     // share of the samples, beside the other parts' weights
};

// As the draw of src/text/corpus.h, with the samples split by weight. Of several parts `source` has the tokens of each.
Windows draw_parts(const Tokenizer&, const std::vector<CalibPart>& parts, int64_t samples, int64_t length,
                   uint64_t seed, std::string* shortfall);

std::string with_tokens(const std::string& source, int64_t tokens);  // "a.txt (4096 tokens)"

}  // namespace fewbit
