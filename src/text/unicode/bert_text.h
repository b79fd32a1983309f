#pragma once
// BERT's clean-up of a text, as far as it is not a Unicode form or lower case. Well-formed UTF-8 in and out.
#include <string>
#include <string_view>

namespace fewbit {

// Without U+0000, U+FFFD and what is Control, Format or Private_Use, but for tab and newlines; white space is a space.
std::string clean_text(std::string_view text);
// With a space on both sides of every CJK ideograph (the blocks that the reference lists).
std::string space_ideographs(std::string_view text);
// Without nonspacing marks, or without any (`all`: spacing and enclosing ones too).
std::string drop_marks(std::string_view text, bool all);

}  // namespace fewbit
