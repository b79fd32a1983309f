// SHA256SUMS: what coreutils read, and what is damaged in it.
#include "src/core/files/checksums.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/core/digest.h"
#include "src/core/files/sha256.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

// FIPS 180-4's example, given whole, in parts and as a file.
TEST(Sha256, KnownDigest) {
  const std::string abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  Sha256 sha;
  sha.add("a", 1);
  sha.add("bc", 2);
  EXPECT_EQ(sha.hex(), abc);
  const TempDir dir;
  std::ofstream(dir / "f") << "abc";
  EXPECT_EQ(sha256_of_file(dir / "f"), abc);
}

TEST(Digest, OfPiecesIsThatOfTheFile) {
  const TempDir dir;
  std::string bytes(size_t{33} << 20, 'x');  // three pieces
  bytes[bytes.size() - 5] = 'y';
  std::ofstream(dir / "f", std::ios::binary) << bytes;
  EXPECT_EQ(digest_of_pieces(bytes.data(), static_cast<int64_t>(bytes.size())), digest_of_file(dir / "f"));
}

TEST(Checksums, EveryDamageIsSeen) {
  const Checksums files = {{"config.json", std::string(64, 'a')},
                           {"model.safetensors", std::string(64, '0')},
                           {"with\\backslash\nand line", std::string(64, '9')}};
  const std::string text = checksums_text(files);
  const ReadChecksums whole = read_checksums(text);
  EXPECT_EQ(whole.files, files);
  EXPECT_TRUE(whole.problems.empty());
  for (size_t i = 0; i < text.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      EXPECT_FALSE(read_checksums(flipped).problems.empty()) << "bit " << bit << " of byte " << i;
    }
  for (size_t cut = 0; cut < text.size(); ++cut)
    EXPECT_FALSE(read_checksums(text.substr(0, cut)).problems.empty()) << "cut at " << cut;
}

// The format is that of sha256sum, escaped names included.
TEST(Checksums, CoreutilsAcceptThem) {
  if (std::system("sha256sum --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no sha256sum";
  const TempDir dir;
  Checksums files;
  for (const char* name : {"plain", "two words", "back\\slash", "a line\nfeed"}) {
    std::ofstream(dir / name) << name;
    files[name] = sha256_of_file(dir / name);
  }
  std::ofstream(dir / kChecksumsFile) << checksums_text(files);
  const std::string check =
      "cd '" + dir.path().string() + "' && sha256sum --strict --quiet -c SHA256SUMS >/dev/null 2>&1";
  EXPECT_EQ(std::system(check.c_str()), 0);
  std::ofstream(dir / "two words") << "three words";
  EXPECT_NE(std::system(check.c_str()), 0);
}

}  // namespace
}  // namespace fewbit::test
