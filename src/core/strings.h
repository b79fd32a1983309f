#pragma once
// Small string helpers shared by parsers and messages.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit {

std::vector<std::string> split(std::string_view s, char separator);  // "a+b" -> {"a", "b"}; empty -> {""}
std::vector<std::string> words(std::string_view s);                  // runs of non-blank characters
std::string join(const std::vector<std::string>& parts, std::string_view separator);
void add_note(std::string& notes, std::string_view note);  // "one; another"; nothing where the note is ""
bool starts_with(std::string_view s, std::string_view prefix);
bool ends_with(std::string_view s, std::string_view suffix);

// Shell-like match over the whole text: '*' any run, '?' one character, '[ab]' and '[0-3]' one of these, '[!ab]' any
// but these, the rest literally, as is a '[' that nothing closes.
bool glob_match(std::string_view pattern, std::string_view text);

std::string hex_of(std::span<const uint8_t> bytes);  // "00ff1a": two digits a byte

std::string human_bytes(int64_t bytes);     // "8.25 MiB"
std::string human_count(int64_t n);         // "4.2 M"
std::string human_seconds(double seconds);  // "1.23 s", "2 min 05 s"

}  // namespace fewbit
