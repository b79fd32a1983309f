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
struct JoinWordPieces {
  std::string prefix{};  // of a token that goes on with a word; any other one gets a space in front
  bool cleanup = true;   // English punctuation and contractions lose the space in front of them
};
using DecoderStep =
    std::variant<BytesFromCharacters, BytesFromTokens, FuseTokens, StripToken, ReplaceText, MarkSpaces, JoinWordPieces>;

// Error{unsupported} where a step makes more than grown_limit() of what the tokens have.
std::string join_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens);

}  // namespace fewbit
