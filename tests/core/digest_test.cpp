#include "src/core/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "src/core/strings.h"
#include "src/core/xxh3/hash_calls.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

std::string bytes_of_length(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * i * 7 >> 3);
  return bytes;
}

struct Known {
  size_t length;
  const char* digest;  // as `xxhsum -H2` of the library prints it
};
constexpr Known kKnown[] = {
    {0, "99aa06d3014798d86001c324468d497f"},      {3, "c328885c71e2e2dbbaada2299d67dc20"},
    {100, "0c7c4389ae5167dea52d043cb1c8058f"},    {240, "448339c3fe8d2df6c23e5b4122aa5d34"},
    {241, "557d9e769c92521a2e566c232ecbb99b"},    {5000, "6dd4700ea69a7251e7508837981d64e9"},
    {100003, "324d48b9d9b95fddf5e862a0260a731b"},
};

TEST(Digest, IsXxh3OfEveryLength) {
  for (const Known& k : kKnown) EXPECT_EQ(digest_of(bytes_of_length(k.length)), k.digest) << k.length;
}

std::string by(const HashCalls& hash, const std::string& bytes, size_t part) {
  void* const state = hash.start();
  for (size_t at = 0; at < bytes.size(); at += part)
    hash.add(state, bytes.data() + at, std::min(part, bytes.size() - at));
  uint8_t digest[16];
  hash.finish(state, digest);
  return hex_of(digest);
}

TEST(Digest, IsTheSameByVectorsOfEveryWidthInPartsOfEveryLength) {
  std::vector<const HashCalls*> widths{&kHashPlain};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) widths.push_back(&kHashAvx2);
  if (__builtin_cpu_supports("avx512f")) widths.push_back(&kHashAvx512);
#endif
  for (const Known& k : kKnown)
    for (const size_t part : {7, 64, 1000, 1 << 17})
      for (const HashCalls* width : widths) EXPECT_EQ(by(*width, bytes_of_length(k.length), part), k.digest) << part;
}

TEST(Digest, OfAFileIsTheDigestOfItsPiecesAndShowsEveryByteOnce) {
  const TempDir dir;
  const std::string bytes = bytes_of_length((size_t{16} << 20) + 300001);  // a piece and the beginning of another
  std::ofstream(dir / "file", std::ios::binary) << bytes;
  std::atomic<int64_t> seen{0}, wrong{0};
  const auto see = [&](int64_t begin, int64_t end, const uint8_t* shown) {
    seen += end - begin;
    for (int64_t i = std::max<int64_t>(begin - 8, 0); i < end; ++i)
      wrong += shown[i - begin] != static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  };
  EXPECT_EQ(digest_of_file(dir / "file", {.see = see}), digest_of_pieces(bytes.data(), std::ssize(bytes)));
  EXPECT_EQ(seen, std::ssize(bytes));
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace fewbit::test
