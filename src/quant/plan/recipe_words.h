#pragma once
// What a recipe's author is told about a word that the grammar does not know. Internal to src/quant/plan.
#include <span>
#include <string>
#include <string_view>

namespace fewbit {

// Error{usage} with the nearest word, the words that exist and, for a method of other programs, what does its work
// here. `word`: as it stands in the recipe, "awq+gtpq" too; `settings`: the keys of KEY=VALUE.
[[noreturn]] void refuse_word(const std::string& word, std::span<const std::string_view> settings);

}  // namespace fewbit
