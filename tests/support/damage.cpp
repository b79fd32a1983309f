#include "tests/support/damage.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace fewbit::test {
namespace {

void wound(std::string& s, size_t front, Rng& rng) {
  const size_t within = std::min(front, s.size());
  if (within == 0) return;
  const size_t at = rng.below(within), length = std::min<size_t>(1 + rng.below(16), s.size() - at);
  switch (rng.below(6)) {
    case 0:
      s[at] = static_cast<char>(s[at] ^ (1 << rng.below(8)));
      break;
    case 1:
      for (size_t i = at; i < at + length; ++i) s[i] = static_cast<char>(rng.below(256));
      break;
    case 2:
      s.erase(at, length);
      break;
    case 3:
      s.insert(at, s.substr(at, length));
      break;
    case 4: {  // a number becomes another: what is neither a syntax error nor the truth
      const size_t digit = s.find_first_of("0123456789", at);
      if (digit < within) s[digit] = "0123456789-e."[rng.below(13)];
      break;
    }
    default:
      s.resize(at);
  }
}

}  // namespace

std::string damaged(std::string bytes, size_t front, uint64_t seed) {
  Rng rng(seed, "damage");
  for (uint64_t n = 1 + rng.below(3); n > 0; --n) wound(bytes, front, rng);
  return bytes;
}

int expect_refused_or_read(const std::string& bytes, size_t front, int count,
                           const std::function<void(const std::string&)>& read) {
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string s = damaged(bytes, front, static_cast<uint64_t>(i));
    try {
      read(s);
    } catch (const Error& e) {
      EXPECT_STRNE(e.what(), "") << "damage " << i;
      ++refused;
    } catch (const std::exception& e) {
      ADD_FAILURE() << "damage " << i << ": not an Error: " << e.what();
    }
  }
  return refused;
}

}  // namespace fewbit::test
