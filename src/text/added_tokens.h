#pragma once
// Added tokens: strings of the file's `added_tokens` that are found in the text before anything else happens.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fewbit {

struct AddedToken {
  std::string content{};
  int32_t id = -1;
  bool special = false;                 // left out by decode with skip_special
  bool normalized = false;              // looked for in the normalized text, not in the text as given
  bool lstrip = false, rstrip = false;  // takes the white space beside it
  bool single_word = false;             // only where no word character stands beside it
};

// A stretch of text, or an added token in its place.
struct Segment {
  size_t begin = 0, end = 0;
  int32_t id = -1;  // -1 = text
};

// Finds the leftmost, then the longest of a set of strings.
class AddedTokenFinder {
 public:
  // Looks for `needle` and reports `token`.
  void add(std::string_view needle, const AddedToken& token);
  std::vector<Segment> split(std::string_view text) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t begin, size_t* end) const;

  std::vector<AddedToken> tokens_{};
  std::unordered_map<uint64_t, int32_t> edges_{};  // node * 256 + byte -> node
  std::vector<int32_t> token_at_{-1};              // per node of the trie: index into tokens_, -1 = none
  bool first_[256] = {};                           // bytes that a needle begins with
};

}  // namespace fewbit
