#pragma once
// Normalizers: rewrites of the text before it is split. A Sequence in the file is a flat list here.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/text/pattern.h"

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
using NormalizerStep = std::variant<UnicodeForm, LowercaseText, StripText, PrependText, ReplaceText>;

// Well-formed UTF-8 in and out.
std::string normalize(const std::vector<NormalizerStep>& steps, std::string text);

// `text` with every match of the pattern replaced.
std::string replace_all(const ReplaceText& replace, std::string_view text);

}  // namespace fewbit
