#pragma once
// What a tokenizer.json says, as plain data. JSON stays in tokenizer_file.cpp.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/text/added_tokens.h"
#include "src/text/bpe.h"
#include "src/text/decoder.h"
#include "src/text/normalizer.h"
#include "src/text/pretokenizer.h"

namespace fewbit {

struct TokenizerFile {
  BpeModel model{};
  std::vector<AddedToken> added{};
  std::vector<NormalizerStep> normalizer{};
  std::vector<PreTokenizerStep> pre_tokenizer{};
  std::optional<std::vector<DecoderStep>> decoder{};  // without one, tokens are joined by spaces
  std::vector<int32_t> prefix{}, suffix{};            // what the post-processor puts around a text
};

// Error{io} when the file cannot be read, Error{checkpoint} when it is not what it should be,
// Error{unsupported} for a part of a kind that is not implemented; file and key are named. `truncation`,
// `padding` and the template for pairs of texts are settings of a call in the reference and not read.
TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

}  // namespace fewbit
