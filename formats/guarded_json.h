#pragma once
// JSON that strangers wrote: every reader parses it here, within limits of size, depth and memory.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fewbit {

// Of objects and lists in one another. Files of models have some ten levels, and what walks a tree recurses.
inline constexpr int kJsonDepth = 190;

// What one file may have: bytes of text, and bytes that the values take in memory, as they are counted while parsed.
struct JsonBudget {
  int64_t text, memory;
  bool python = false;  // NaN, Infinity and -Infinity are numbers too, as Python's json writes and reads them
};
// config.json and what lies beside it: the longest, of mixtures with a rule for each linear, have some 10 MB. Python
// wrote them, so whoever takes a number from one asks whether it is finite.
inline constexpr JsonBudget kConfigJson = {int64_t{32} << 20, int64_t{96} << 20, true};
// A record for every tensor or linear, of which the largest mixtures have some 100,000; or a tokenizer of some
// 300,000 entries and 600,000 merges, which counts 150 MB.
inline constexpr JsonBudget kTableJson = {int64_t{128} << 20, int64_t{320} << 20};
// A line of a .jsonl, a record of a journal, and other small things.
inline constexpr JsonBudget kRecordJson = {int64_t{16} << 20, int64_t{64} << 20};

// Error{checkpoint} "where: …": not JSON (with the byte, numbers beyond a double too), deeper than kJsonDepth, or over
// the budget, which the message has. The last of equal keys stands, as in Python. Costs no stack and is linear in time
// for objects of any size.
nlohmann::json parse_json(std::string_view text, const std::string& where, const JsonBudget&);
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where, const JsonBudget&);
// The same, but a discarded value where that fails: for files that need not be ours, or were being written.
nlohmann::json json_or_discarded(std::string_view text, const JsonBudget&);
nlohmann::ordered_json ordered_json_or_discarded(std::string_view text, const JsonBudget&);

// The text of a tree with numbers that are not finite spelled as Python spells them; all else as dump(indent) has it.
std::string python_json(const nlohmann::json&, int indent = -1);
std::string python_json(const nlohmann::ordered_json&, int indent = -1);
// The same tree with texts in place of such numbers, for files of ours that any reader of JSON is to read.
nlohmann::json with_words_for_non_finite(nlohmann::json);
nlohmann::ordered_json with_words_for_non_finite(nlohmann::ordered_json);

// Runs `read`, which takes a tree apart; what the library says of a missing key or another type becomes
// Error{checkpoint} "where: …".
void take_apart(const std::string& where, const std::function<void()>& read);

// The text of a regular file that is to be parsed. Error{io}; Error{checkpoint} where it is larger than the budget.
std::string json_text(const std::filesystem::path&, const JsonBudget&);

}  // namespace fewbit
