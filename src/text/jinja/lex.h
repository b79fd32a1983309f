#pragma once
// A template as tokens: the texts between the tags and what stands inside of them.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/site.h"

namespace fewbit::jinja {

struct Token {
  enum class Kind : uint8_t {
    end,
    data,          // text outside of tags, its whitespace already trimmed
    output_begin,  // {{
    output_end,
    block_begin,  // {%
    block_end,
    name,
    integer,  // its digits, without underscores
    real,
    string,  // its value
    symbol,
  } kind = Kind::end;
  std::string text{};
  int line = 1;
};

// The last token is an end. Comments are gone, raw blocks are data; the whitespace around tags is taken away as their
// marks, trim_blocks and lstrip_blocks say. Error{checkpoint} at the line that cannot be read.
std::vector<Token> lex(std::string_view source, Site&);

}  // namespace fewbit::jinja
