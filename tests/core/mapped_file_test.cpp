// Files that are mapped whole, and through windows where the address space is limited.
#include "src/core/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "src/core/error.h"
#include "src/core/host_memory.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Lets the process map this much more than it has mapped, as `ulimit -v` would, for as long as it lives.
class LimitedAddressSpace {
 public:
  explicit LimitedAddressSpace(int64_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::ifstream statm("/proc/self/statm");
    int64_t pages = 0;
    statm >> pages;
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(pages * 4096 + more);
    ::setrlimit(RLIMIT_AS, &now);
  }
  ~LimitedAddressSpace() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

// A file of zeros but for a byte at each of `at`, which counts them from 1.
std::filesystem::path sparse_file(const TempDir& dir, int64_t bytes, std::initializer_list<int64_t> at) {
  const std::filesystem::path path = dir.path() / "f";
  std::ofstream f(path, std::ios::binary);
  char n = 0;
  for (const int64_t place : at) {
    f.seekp(place);
    f.put(++n);
  }
  f.close();
  std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes));
  return path;
}

TEST(MappedFile, IsWholeWithoutALimit) {
  const TempDir dir;
  const MappedFile f = MappedFile::windowed(sparse_file(dir, 64 * kMiB, {5, 64 * kMiB - 1}));
  EXPECT_TRUE(f.whole());
  EXPECT_EQ(*f.at(5, 1), 1);
  EXPECT_EQ(f.bytes().back(), 2);
}

TEST(MappedFile, GoesThroughWindowsUnderALimit) {
  const TempDir dir;
  const auto path = sparse_file(dir, 1024 * kMiB, {5, 4095, 700 * kMiB + 3, 1024 * kMiB - 1});
  const LimitedAddressSpace limited(256 * kMiB);
  MappedFile f = MappedFile::windowed(path);
  ASSERT_FALSE(f.whole());
  EXPECT_EQ(f.size(), 1024 * kMiB);
  EXPECT_EQ(*f.at(4095, 2), 2);
  EXPECT_EQ(*f.at(5, 1), 1);
  // More than fits at once, one after another.
  for (int64_t begin = 0; begin < f.size(); begin += 100 * kMiB) {
    const int64_t count = std::min(100 * kMiB, f.size() - begin);
    const uint8_t* bytes = f.at(begin, count);
    if (begin == 700 * kMiB) {
      EXPECT_EQ(bytes[3], 3);
    }
    f.forget(begin, count);
  }
  const MappedFile moved = std::move(f);
  EXPECT_EQ(*moved.at(moved.size() - 1, 1), 4);
}

TEST(MappedFile, AWindowThatDoesNotFitSaysWhatToRaise) {
  const TempDir dir;
  const auto path = sparse_file(dir, 1024 * kMiB, {0});
  const LimitedAddressSpace limited(256 * kMiB);
  const MappedFile f = MappedFile::windowed(path);
  try {
    f.at(0, f.size());
    FAIL() << "nothing was refused";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("ulimit -v"), std::string::npos) << e.what();
  }
  EXPECT_EQ(*f.at(0, 1), 1);  // and goes on
}

}  // namespace
}  // namespace fewbit::test
