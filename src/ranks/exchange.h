#pragma once
// Small values on their way between ranks: what all of them must decide alike. Collective: every rank calls them.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/ranks/ranks.h"

namespace fewbit {

// The root's text, everywhere.
std::string text_of_root(const Ranks&, std::string text, int root = 0);
// The root's bytes, everywhere.
void bytes_of_root(const Ranks&, std::span<char> bytes, int root = 0);
template <class T>
T value_of_root(const Ranks& ranks, T value, int root = 0) {
  bytes_of_root(ranks, {reinterpret_cast<char*>(&value), sizeof value}, root);
  return value;
}

bool true_for_any(const Ranks&, bool here);
bool true_for_all(const Ranks&, bool here);
int64_t least_of_all(const Ranks&, int64_t here);
// Element by element over the ranks; every rank gives equally many.
std::vector<int64_t> sum_of_all(const Ranks&, std::vector<int64_t> here);
float largest_of_all(const Ranks&, float here);

}  // namespace fewbit
