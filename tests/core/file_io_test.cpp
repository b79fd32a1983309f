// Digests, and the calls that put files and folders on the disk and in their places.
#include "src/core/file_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "src/core/digest.h"
#include "src/core/rng.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& p, const std::string& bytes) { std::ofstream(p, std::ios::binary) << bytes; }

std::string bytes_by_seed(size_t n) {
  std::string s(n, '\0');
  for (size_t i = 0; i < n; ++i) s[i] = static_cast<char>(mix64(i));
  return s;
}

TEST(Digest, IsXxh3Of128Bits) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");  // of the library's own sanity checks
  EXPECT_EQ(digest_of("abc").size(), kDigestDigits);
  EXPECT_NE(digest_of("abc"), digest_of("abd"));
}

TEST(Digest, OfAFileSeesEveryPiece) {
  const TempDir dir;
  const size_t bytes = (size_t{33} << 20) + 5;  // three pieces
  std::string all = bytes_by_seed(bytes);
  write(dir / "f", all);
  const std::string before = digest_of_file(dir / "f");
  EXPECT_EQ(digest_of_file(dir / "f"), before);
  for (const size_t at : {size_t{0}, size_t{16} << 20, (size_t{32} << 20) - 1, bytes - 1}) {
    all[at] = static_cast<char>(all[at] ^ 1);
    write(dir / "f", all);
    EXPECT_NE(digest_of_file(dir / "f"), before) << at;
    all[at] = static_cast<char>(all[at] ^ 1);
  }
  EXPECT_EQ(message_of([&] { digest_of_file(dir / "none"); }, ErrorKind::io).find((dir / "none").string()), 0u);
}

TEST(Digest, ShowsEveryByteOnceWithThoseBefore) {
  const TempDir dir;
  const std::string all = bytes_by_seed((size_t{17} << 20) + 3);
  write(dir / "f", all);
  std::vector<int> seen(all.size());
  std::atomic<int64_t> done = 0, wrong = 0;
  const FileReading reading{.see =
                                [&](int64_t begin, int64_t end, const uint8_t* bytes) {
                                  for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
                                  for (int64_t i = std::max<int64_t>(0, begin - 8); i < end; ++i)
                                    wrong += bytes[i - begin] != static_cast<uint8_t>(all[static_cast<size_t>(i)]);
                                },
                            .done = [&](int64_t bytes) { done += bytes; },
                            .drop_pages = true};
  EXPECT_EQ(digest_of_file(dir / "f", reading), digest_of_file(dir / "f"));
  EXPECT_EQ(done, static_cast<int64_t>(all.size()));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(all.size()));
}

TEST(FileIo, RenamesToNewNamesOnly) {
  const TempDir dir;
  fs::create_directory(dir / "a");
  fs::create_directory(dir / "empty");
  EXPECT_FALSE(rename_to_new(dir / "a", dir / "empty"));
  EXPECT_TRUE(rename_to_new(dir / "a", dir / "b"));
  EXPECT_TRUE(fs::exists(dir / "b"));
  EXPECT_NE(message_of([&] { rename_to_new(dir / "a", dir / "c"); }, ErrorKind::io), "");
}

TEST(FileIo, ExchangesInOneStep) {
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(dir / name);
    write((dir / name) / "who", name);
  }
  if (!exchange(dir / "a", dir / "b")) GTEST_SKIP() << "this file system exchanges nothing";
  EXPECT_EQ(bytes_of_file(dir / "a/who"), "b");
  EXPECT_EQ(bytes_of_file(dir / "b/who"), "a");
  EXPECT_NE(message_of([&] { exchange(dir / "a", dir / "none"); }, ErrorKind::io), "");
}

TEST(FileIo, ReadsRegularFilesOnly) {
  const TempDir dir;
  EXPECT_NE(message_of([&] { File::read(dir.path()); }, ErrorKind::io), "");
  EXPECT_NE(message_of([&] { File::read("/dev/null"); }, ErrorKind::io), "");
}

}  // namespace
}  // namespace fewbit::test
