#pragma once
// A trie over bytes that does not change: which of many strings begin at a place of a text. Children of a node lie side
// by side, sorted; a step is a binary search, at the root a table.
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace fewbit {

class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRoot = 0;

  // Strings with values >= 0. Of equal strings the last one counts; empty ones are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> strings = {});

  // The node behind `node` and `byte`, or kNone.
  int32_t step(int32_t node, uint8_t byte) const;
  int32_t walk(int32_t node, std::string_view bytes) const;  // all steps, or kNone
  // The value of the string that ends at `node`, or kNone.
  int32_t value(int32_t node) const { return nodes_[static_cast<size_t>(node)].value; }

 private:
  struct Node {
    int32_t children = 0, count = 0;  // the first child and how many there are
    int32_t value = kNone;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_{};
  std::array<int32_t, 256> first_{};  // children of the root by byte
};

}  // namespace fewbit
