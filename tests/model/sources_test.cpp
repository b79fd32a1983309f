// The first reading of a model: digests, values that are not finite, and when a record stands for the reading.
#include "src/model/sources/sources.h"
#include "src/model/sources/sources_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "src/core/digest.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

const fs::path kDemoModel = in_source("calib_data/demo-model");

// A file whose floats begin at odd addresses, so that elements lie across the borders of what is read at a time.
class OddFile {
 public:
  explicit OddFile(const fs::path& path) : path_(path) {
    const std::string header = R"({"bytes":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                               R"("codes":{"dtype":"I32","shape":[4],"data_offsets":[3,19]},)"
                               R"("w":{"dtype":"F32","shape":[)" +
                               std::to_string(kFloats) + R"(],"data_offsets":[19,)" + std::to_string(19 + 4 * kFloats) +
                               "]}}";
    const uint64_t length = header.size();
    bytes_.assign(reinterpret_cast<const char*>(&length), 8);
    bytes_ += header;
    codes_ = bytes_.size() + 3;
    floats_ = bytes_.size() + 19;
    bytes_.resize(floats_ + 4 * kFloats);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes_.data() + codes_, &nan, 4);  // a code like any other
  }
  static constexpr int64_t kFloats = (int64_t{17} << 20) / 4;

  void set(int64_t index, float value) { std::memcpy(bytes_.data() + floats_ + 4 * index, &value, 4); }
  // Of the float that has the byte `at` of the file.
  int64_t index_at(int64_t at) const { return (at - static_cast<int64_t>(floats_)) / 4; }
  void write() const { std::ofstream(path_, std::ios::binary) << bytes_; }

 private:
  fs::path path_;
  std::string bytes_;
  size_t codes_ = 0, floats_ = 0;
};

std::vector<NotFinite> found_in(const fs::path& file) { return read_sources(file, {}).at(0).not_finite; }

TEST(Sources, FindsWhatIsNotFiniteAcrossEveryBorder) {
  const TempDir dir;
  OddFile file(dir / "m.safetensors");
  file.write();
  EXPECT_TRUE(found_in(dir / "m.safetensors").empty()) << "codes are no floats";
  for (const int64_t at : {int64_t{1} << 20, int64_t{5} << 20, int64_t{16} << 20})
    for (const int64_t before : {-4, -1, 0, 1}) {
      const int64_t index = file.index_at(at + before);
      file.set(index, -std::numeric_limits<float>::infinity());
      file.write();
      const auto found = found_in(dir / "m.safetensors");
      ASSERT_EQ(found.size(), 1u) << index;
      EXPECT_EQ(found[0].tensor, "w");
      EXPECT_EQ(found[0].index, index);
      file.set(index, 0);
    }
  file.set(OddFile::kFloats - 1, NAN);
  file.set(77, NAN);
  file.write();
  EXPECT_EQ(found_in(dir / "m.safetensors").at(0).index, 77) << "the first, whichever thread comes first";
  const std::string lines = not_finite_lines(dir / "m.safetensors", read_sources(dir / "m.safetensors", {}));
  EXPECT_NE(lines.find("tensor 'w'"), std::string::npos) << lines;
  EXPECT_NE(lines.find("element 77"), std::string::npos) << lines;
}

// Whether reading the model looks into its files.
bool reads(const fs::path& model, SourceReading reading) {
  bool read = false;
  reading.progress = [&](double) { read = true; };
  read_sources(model, reading);
  return read;
}

TEST(Sources, AnUntouchedFileIsNotReadAgain) {
  const TempDir dir;
  fs::copy(kDemoModel, dir / "m");
  const SourceReading mine{.run = {}, .user = dir / "cache"};
  const std::vector<SourceFile> first = read_sources(dir / "m", mine);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].digest, digest_of_file(dir / "m/model.safetensors"));
  EXPECT_FALSE(reads(dir / "m", mine));
  EXPECT_EQ(read_sources(dir / "m", mine)[0].digest, first[0].digest);
  EXPECT_TRUE(reads(dir / "m", {})) << "nobody has a record";
  SourceReading again = mine;
  again.rehash = true;
  EXPECT_TRUE(reads(dir / "m", again));
  // Another byte, the old size and the old times of content: the system's own time of change tells.
  struct stat st {};
  ASSERT_EQ(::stat((dir / "m/model.safetensors").c_str(), &st), 0);
  std::fstream(dir / "m/model.safetensors", std::ios::in | std::ios::out | std::ios::binary).seekp(-5, std::ios::end)
      << 'x';
  const timespec times[] = {st.st_atim, st.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir / "m/model.safetensors").c_str(), times, 0), 0);
  EXPECT_TRUE(reads(dir / "m", mine));
  EXPECT_NE(read_sources(dir / "m", mine)[0].digest, first[0].digest);
}

TEST(Sources, ReadAheadAreThoseThatAreReadAndAreRecordedWhenTheyAreTaken) {
  const TempDir dir;
  fs::copy(kDemoModel, dir / "m");
  const SourceReading mine{.run = dir / "run", .user = dir / "cache"};
  fs::create_directory(dir / "run");
  {
    SourcesAhead ahead(dir / "m", mine);
    const std::vector<SourceFile> found = ahead.take({});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].digest, digest_of_file(dir / "m/model.safetensors"));
  }
  EXPECT_FALSE(reads(dir / "m", {.run = dir / "run"}));
  EXPECT_FALSE(reads(dir / "m", {.user = dir / "cache"}));
  fs::remove_all(dir / "cache");
  { const SourcesAhead nobody_takes(dir / "m", {.user = dir / "cache"}); }
  EXPECT_FALSE(fs::exists(dir / "cache"));
  // An error comes to whoever takes, also one of the function that is told of the progress.
  SourcesAhead none(dir / "none", {});
  EXPECT_THROW(none.take({}), Error);
}

TEST(Sources, ReadingEndsWhenItIsTold) {
  const std::atomic<bool> stop = true;
  EXPECT_THROW(read_sources(kDemoModel, {.stop = &stop}), Error);
}

TEST(Sources, ARecordThatIsTornOrCannotBeWrittenIsNone) {
  const TempDir dir;
  fs::copy(kDemoModel, dir / "m");
  const SourceReading mine{.run = {}, .user = dir / "cache"};
  read_sources(dir / "m", mine);
  const fs::path record = *fs::directory_iterator(dir / "cache");
  const std::string whole = bytes_of_file(record);
  for (const size_t bytes : {size_t{0}, size_t{40}, whole.size() - 3}) {
    std::ofstream(record, std::ios::binary) << whole.substr(0, bytes);
    EXPECT_TRUE(reads(dir / "m", mine)) << bytes;
    EXPECT_FALSE(reads(dir / "m", mine)) << "it was written anew";
  }
  std::ofstream(dir / "file") << "no folder";
  EXPECT_TRUE(reads(dir / "m", {.run = {}, .user = dir / "file"}));
}

// A killed writer's file goes; one that a live process may still rename stays, and so does one that was written to just
// now, whose process may live on another machine; a name that only resembles these is not ours.
TEST(Sources, TemporaryFilesOfKilledRunsGoWithTheNextRecord) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const TempDir dir;
  fs::create_directory(dir / "cache");
  const auto put = [&](const std::string& name, std::chrono::hours age) {
    const fs::path file = dir / "cache" / name;
    std::ofstream(file) << "half of a rec";
    fs::last_write_time(file, fs::file_time_type::clock::now() - age);
    return file;
  };
  const std::chrono::hours old{2}, now{0};
  const auto named = [](const std::string& digest, int64_t pid) {
    return "sources-" + digest + ".json." + std::to_string(pid) + ".tmp";
  };
  const fs::path gone = put(named("aa", child), old), fresh = put(named("bb", child), now);
  const fs::path live = put(named("cc", ::getpid()), old);
  const fs::path other = put("sources-dd.json." + std::to_string(child) + "x.tmp", old);
  fs::copy(kDemoModel, dir / "m");
  read_sources(dir / "m", {.run = {}, .user = dir / "cache"});
  EXPECT_FALSE(fs::exists(gone));
  for (const fs::path& kept : {fresh, live, other}) EXPECT_TRUE(fs::exists(kept)) << kept;
}

}  // namespace
}  // namespace fewbit::test
