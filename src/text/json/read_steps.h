#pragma once
// The normalizer, pre-tokenizer and decoder of a tokenizer.json. Internal to src/text.
#include <vector>

#include "src/text/decoder.h"
#include "src/text/json/json_node.h"
#include "src/text/normalizer.h"
#include "src/text/pretokenizer.h"

namespace fewbit {

// Appends the steps of `n`; a Sequence becomes all of its parts. `depth`: how many Sequences there are around it.
// Error{checkpoint} for a value of the wrong kind, Error{unsupported} for a type that is not implemented or a limit of
// json_node.h; file and key are named.
void read_normalizer(const JsonNode& n, std::vector<NormalizerStep>& steps, int depth = 0);
void read_pre_tokenizer(const JsonNode& n, std::vector<PreTokenizerStep>& steps, int depth = 0);
void read_decoder(const JsonNode& n, std::vector<DecoderStep>& steps, int depth = 0);

}  // namespace fewbit
