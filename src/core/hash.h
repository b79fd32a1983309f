#pragma once
// A fast content hash for reports and reproducibility checks. Not cryptographic.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "src/core/rng.h"

namespace fewbit {

class Hasher {
 public:
  void add(std::span<const uint8_t> bytes) {
    for (uint8_t b : bytes) {
      word_ |= static_cast<uint64_t>(b) << (8 * (length_ & 7));
      if ((++length_ & 7) == 0) flush();
    }
  }
  void add(const void* p, size_t n) { add({static_cast<const uint8_t*>(p), n}); }
  uint64_t value() const { return mix64(mix64(state_ ^ word_) + length_); }
  std::string hex() const {
    static const char* digits = "0123456789abcdef";
    std::string s(16, '0');
    for (int i = 0; i < 16; ++i) s[i] = digits[(value() >> (60 - 4 * i)) & 15];
    return s;
  }

 private:
  void flush() {
    state_ = (((state_ ^ mix64(word_)) << 27) | ((state_ ^ mix64(word_)) >> 37)) * 0x9fb21c651e98df25ull + 0x52dce729;
    word_ = 0;
  }
  uint64_t state_ = 0x243f6a8885a308d3ull, word_ = 0, length_ = 0;
};

inline std::string content_hash(const void* p, size_t n) {
  Hasher h;
  h.add(p, n);
  return h.hex();
}

}  // namespace fewbit
