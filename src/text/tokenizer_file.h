#pragma once
// What a tokenizer.json says, as plain data. src/text/json has the readers of its parts.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "src/text/added_tokens.h"
#include "src/text/bpe.h"
#include "src/text/decoder.h"
#include "src/text/models/unigram.h"
#include "src/text/models/word_piece.h"
#include "src/text/normalizer.h"
#include "src/text/pretokenizer.h"

namespace fewbit {

using TokenModel = std::variant<BpeModel, UnigramModel, WordPieceModel>;

struct TokenizerFile {
  TokenModel model{};
  std::vector<AddedToken> added{};
  std::vector<NormalizerStep> normalizer{};
  std::vector<PreTokenizerStep> pre_tokenizer{};
  std::optional<std::vector<DecoderStep>> decoder{};  // without one, tokens are joined by spaces
  std::vector<int32_t> prefix{}, suffix{};            // what the post-processor puts around a text

  const Vocabulary& vocab() const {
    return std::visit([](const auto& m) -> const Vocabulary& { return m.vocab; }, model);
  }
  // For those who have checked that it is one: what GGUF can say.
  BpeModel& bpe() { return std::get<BpeModel>(model); }
  const BpeModel& bpe() const { return std::get<BpeModel>(model); }
};

// Error{io} when the file cannot be read, Error{checkpoint} when it is not what it should be,
// Error{unsupported} for a part of a kind that is not implemented; file and key are named. `truncation`,
// `padding` and the template for pairs of texts are settings of a call in the reference and not read.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

}  // namespace fewbit
