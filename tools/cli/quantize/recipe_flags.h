#pragma once
// The words of a recipe as flags.
#include <CLI/CLI.hpp>
#include <string>

namespace fewbit::cli {

inline constexpr const char* kRecipeGroup = "Recipe (the words of RECIPE as flags)";

// Every flag that is given adds its word to `words`, which must live as long as the app.
void add_recipe_flags(CLI::App& app, std::string& words);

}  // namespace fewbit::cli
