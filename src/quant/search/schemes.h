#pragma once
// What `auto schemes=int4,nvfp4,bf16` chooses among: the words, and the grids that each stands for.
#include <string>
#include <string_view>
#include <vector>

#include "src/quant/plan/recipe.h"

namespace fewbit {

// One way to store a linear.
struct Candidate {
  Recipe over{};     // on top of the run's recipe
  QuantSpec spec{};  // unless over.keep, which leaves the linear as it is
  std::string name() const { return over.keep ? "bf16" : spec.str(); }
};

inline constexpr std::string_view kAllSchemes = "all";  // every word, as far as format and engine take it

// The words of a list with commas, each once. Error{usage} with the known words and the nearest.
std::vector<std::string> schemes_from(std::string_view list);

// "all", "active", "5GiB" (of the whole checkpoint) or "2.5ms@rtx4090". Error{usage} with what is expected.
Budget budget_from(std::string_view text);

// True where a word of them is no integer: such mixes are compressed-tensors' unless the recipe says otherwise.
bool has_floats(const std::vector<std::string>& schemes);

// The candidates of the recipe's schemes: integers in groups of 32, 64 and 128 or a row (above 4 bits: 128), those of 4
// bits in groups with zero points too, unless the recipe says sym or asym; fp8 per output; inputs are left alone. "all"
// leaves out what is 1.6 bits below the target. Without schemes: integers of 2, 3, 4, 5, 6 and 8 bits in groups of 32,
// 64 and 128 as the recipe has them, between 1.6 bits below the target and 4.5 above.
// Error{usage} with its word for one that the recipe contradicts (act=full beside nvfp4), unless the word is "all".
std::vector<Candidate> candidates_of(const Recipe& base);

}  // namespace fewbit
