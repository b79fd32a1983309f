#pragma once
// Characters as Python's str knows them: whitespace, case with its special rules, what repr() shows.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fewbit::jinja {

bool is_blank(uint32_t code);      // str.isspace
bool is_printable(uint32_t code);  // what repr() shows as it is
bool is_letter(uint32_t code);     // str.isalpha
bool is_upper(uint32_t code);
bool is_lower(uint32_t code);
bool is_cased(uint32_t code);
// str.isdigit; nullopt of numbers that are no decimal digits (fractions, superscripts), which it takes some of.
std::optional<bool> is_digit(uint32_t code);
bool is_decimal(uint32_t code);  // str.isdecimal

// Without the characters at both ends that are in `set`, or are whitespace where it is absent.
std::string_view stripped(std::string_view s, std::optional<std::string_view> set, bool left, bool right);

// Full mappings of Unicode: ß becomes SS, a final Σ ς.
std::string upper(std::string_view);
std::string lower(std::string_view);
std::string title(std::string_view);        // str.title: every run of cased characters begins with a capital
std::string capitalized(std::string_view);  // str.capitalize

}  // namespace fewbit::jinja
