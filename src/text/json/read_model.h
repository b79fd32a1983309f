#pragma once
// The model of a tokenizer.json. Internal to src/text.
#include "src/text/json/json_node.h"
#include "src/text/tokenizer_file.h"

namespace fewbit {

// BPE, Unigram or WordPiece. Error{checkpoint} for a value that cannot be, Error{unsupported} for another type or a
// setting that is not implemented; file and key are named.
TokenModel read_model(const JsonNode& n);

}  // namespace fewbit
