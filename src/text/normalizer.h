#pragma once
// Normalizers: rewrites of the text before it is split. A Sequence in the file is a flat list here.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/text/pattern.h"
#include "src/text/unicode/charsmap.h"

namespace fewbit {

enum class UnicodeForm : uint8_t { nfc, nfd, nfkc, nfkd };
struct LowercaseText {};
struct StripText {
  bool left = true, right = true;
};
struct PrependText {
  std::string text{};  // put in front of a text that is not empty
};
struct ReplaceText {
  Pattern pattern;
  std::string content{};
};
struct CleanText {};        // src/text/unicode/bert_text.h has these three
struct SpaceIdeographs {};  //
struct DropMarks {
  bool all = false;
};
using NormalizerStep = std::variant<UnicodeForm, LowercaseText, StripText, PrependText, ReplaceText, Charsmap,
                                    CleanText, SpaceIdeographs, DropMarks>;

// What a text of `bytes` may grow to. Unicode's own forms make 11 bytes of one at most, and marks for spaces 3.
constexpr size_t grown_limit(size_t bytes) { return 64 * bytes + 65536; }

// Well-formed UTF-8 in and out. Error{unsupported} where the text grows beyond grown_limit().
std::string normalize(const std::vector<NormalizerStep>& steps, std::string text);

// `text` with every match of the pattern replaced. Error{unsupported} where that has more than `limit` bytes.
std::string replace_all(const ReplaceText& replace, std::string_view text, size_t limit);

}  // namespace fewbit
