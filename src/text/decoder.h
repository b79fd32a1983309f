#pragma once
// Decoders: token strings back to text. A Sequence in the file is a flat list here.
#include <string>
#include <variant>
#include <vector>

#include "src/text/normalizer.h"
#include "src/text/pretokenizer.h"

namespace fewbit {

struct BytesFromCharacters {};  // ByteLevel: characters of the byte alphabet to bytes, ill-formed ones to U+FFFD
struct BytesFromTokens {};      // ByteFallback: tokens <0xHH> to bytes
struct FuseTokens {};
struct StripToken {
  std::string content{};  // one character, removed at most `start` times in front and `stop` times behind
  int64_t start = 0, stop = 0;
};
using DecoderStep = std::variant<BytesFromCharacters, BytesFromTokens, FuseTokens, StripToken, ReplaceText, MarkSpaces>;

std::string join_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

}  // namespace fewbit
