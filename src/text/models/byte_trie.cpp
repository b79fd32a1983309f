// Built level by level from the sorted strings: a node is a range of strings that begin alike.
#include "src/text/models/byte_trie.h"

#include <algorithm>

namespace fewbit {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> strings) {
  std::stable_sort(strings.begin(), strings.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    size_t begin, end;
  };
  nodes_.emplace_back();
  std::vector<Range> level = {{0, strings.size()}};
  size_t first = 0;  // node of level[0]
  for (size_t depth = 0; !level.empty(); ++depth) {
    std::vector<Range> next;
    for (size_t k = 0; k < level.size(); ++k) {
      size_t i = level[k].begin;
      for (; i < level[k].end && strings[i].first.size() == depth; ++i)
        if (depth > 0) nodes_[first + k].value = strings[i].second;
      nodes_[first + k].children = static_cast<int32_t>(first + level.size() + next.size());
      while (i < level[k].end) {
        const char c = strings[i].first[depth];
        const size_t begin = i;
        while (i < level[k].end && strings[i].first[depth] == c) ++i;
        next.push_back({begin, i});
        nodes_.push_back({.byte = static_cast<uint8_t>(c)});
        ++nodes_[first + k].count;
      }
    }
    first += level.size();
    level = std::move(next);
  }
  first_.fill(kNone);
  for (int32_t c = 0; c < nodes_[0].count; ++c) {
    const int32_t child = nodes_[0].children + c;
    first_[nodes_[static_cast<size_t>(child)].byte] = child;
  }
}

int32_t ByteTrie::step(int32_t node, uint8_t byte) const {
  if (node == kRoot) return first_[byte];
  const Node& n = nodes_[static_cast<size_t>(node)];
  const auto begin = nodes_.begin() + n.children, end = begin + n.count;
  const auto it = std::lower_bound(begin, end, byte, [](const Node& child, uint8_t b) { return child.byte < b; });
  return it != end && it->byte == byte ? static_cast<int32_t>(it - nodes_.begin()) : kNone;
}

int32_t ByteTrie::walk(int32_t node, std::string_view bytes) const {
  for (const char c : bytes) {
    if (node == kNone) return kNone;
    node = step(node, static_cast<uint8_t>(c));
  }
  return node;
}

}  // namespace fewbit
