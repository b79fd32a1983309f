#pragma once
// SentencePiece's precompiled character map: what some strings are replaced by, as a double array (Darts) over their
// bytes and a blob of texts that end with a zero byte.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit {

class Charsmap {
 public:
  // `base64` of: the trie's size in bytes (u32), its units (u32 each), the texts; little-endian. Error{checkpoint}
  // naming `where` (file and key) for anything else.
  static Charsmap from_base64(std::string_view base64, const std::string& where);

  // Well-formed UTF-8, every grapheme cluster of up to 5 bytes replaced as a whole, where the map has it or a beginning
  // of it, else its characters one by one. A beginning counts for the whole and the shortest one wins, as in the
  // reference. Error{checkpoint} naming `where` where the map points outside of itself or a text is no UTF-8,
  // Error{unsupported} where the result has more than `limit` bytes.
  std::string apply(std::string_view text, size_t limit) const;

 private:
  bool find(std::string_view key, std::string_view* found) const;
  std::string_view text_at(uint32_t offset) const;

  std::string where_{};
  std::vector<uint32_t> units_{};
  std::string texts_{};
};

}  // namespace fewbit
