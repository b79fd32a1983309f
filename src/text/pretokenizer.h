#pragma once
// Pre-tokenizers: how a text falls into the words that are merged one by one. What the file calls ByteLevel
// or Metaspace is read as several of these steps; a Sequence is a flat list.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/text/pattern.h"

namespace fewbit {

enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };
struct SplitWords {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what does not match is the delimiter
};
struct PrefixSpace {};     // a space in front of a word that does not begin with one
struct ByteCharacters {};  // bytes to the characters of the byte alphabet
enum class PrependScheme : uint8_t { always, first, never };
struct MarkSpaces {  // spaces become the mark, and a mark is put in front
  std::string mark{};
  PrependScheme scheme = PrependScheme::always;
};
using PreTokenizerStep = std::variant<SplitWords, PrefixSpace, ByteCharacters, MarkSpaces>;

struct Word {
  size_t begin = 0, end = 0;
  bool at_start = false;  // begins where the whole input begins
};
// Words are ranges of one text, in order; together they need not cover it. None is empty.
struct Words {
  std::string text{};
  std::vector<Word> list{};
  std::string_view operator[](size_t i) const {
    return std::string_view(text).substr(list[i].begin, list[i].end - list[i].begin);
  }
};

Words pre_tokenize(const std::vector<PreTokenizerStep>& steps, std::string text, bool at_start);

}  // namespace fewbit
