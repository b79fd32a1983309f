#pragma once
// A tokenizer as GGUF metadata (tokenizer.ggml.*, tokenizer.chat_template), and back. Two kinds: "gpt2", byte
// characters with merges, its splitting rule told by a name; and "llama", SentencePiece's BPE with a score
// per token instead of merges.
#include <filesystem>

#include "formats/gguf/metadata.h"
#include "src/text/tokenizer_file.h"

namespace fewbit {

// From the tokenizer.json of a model folder, with special tokens and the chat template of
// tokenizer_config.json (or chat_template.jinja) where they exist. Ids up to `vocab` that have no token are
// filled. Where the folder has no tokenizer.json, the one key that says so: readers then take token ids.
// Error{unsupported} names what GGUF cannot say.
gguf::Metadata tokenizer_to_gguf(const std::filesystem::path& dir, int64_t vocab);

bool has_no_tokenizer(const gguf::Metadata&);

// The metadata's tokenizer. Error{checkpoint|unsupported} naming the key.
TokenizerFile tokenizer_from_gguf(const gguf::Metadata&);
TokenizerFile read_gguf_tokenizer(const std::filesystem::path& file);

}  // namespace fewbit
