#pragma once
// The tokenizer of a .gguf file as the files of a Hugging Face model folder.
#include <string>

#include "formats/gguf/metadata.h"

namespace fewbit {

struct TokenizerFiles {
  std::string tokenizer{};  // tokenizer.json
  std::string config{};     // tokenizer_config.json, with the chat template
};

// Vocabulary, merges, splitting rule, added and special tokens, what stands around a text. Merges of the
// "llama" kind are told by scores: they come in the order of those, as transformers makes them of a
// SentencePiece model. Error{checkpoint|unsupported} naming the key that is absent or not understood.
TokenizerFiles tokenizer_files_from_gguf(const gguf::Metadata&);

}  // namespace fewbit
