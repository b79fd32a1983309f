#pragma once
// What JSON that users give must not hold where it is taken apart and passed on.
#include <string>
#include <string_view>

namespace fewbit {

// Why `text` is refused: no JSON (with the byte), nested more than 190 deep, or a whole number of more than 64 bits,
// which would silently become a float. "" where it is fine. Costs no stack, however deep the text is.
std::string json_problem(std::string_view text);

}  // namespace fewbit
