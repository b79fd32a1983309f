#pragma once
// A text file of any size: read through a window, never mapped, with no more of it in memory than was asked for.
#include <cstdint>
#include <filesystem>
#include <string>

namespace fewbit {

// A text up to this size is read and tokenized whole, which takes some 13 bytes of memory a byte; a larger one is read
// in parts.
inline constexpr int64_t kWholeText = int64_t{64} << 20;

class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path);  // Error{io}; Error{checkpoint} on an empty file
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  ~TextFile();

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }
  std::string read(int64_t at, int64_t bytes) const;  // less where the file ends before

  // Where a text can begin at or behind `at`, before `at` + `reach`: the first document (a line behind a blank one),
  // else the first line, else the first character. The file's begin and end are such places too.
  int64_t start_from(int64_t at, int64_t reach) const;
  // Of the size and 64 samples of 4 KiB at fixed places, so that gigabytes need not be read to tell two texts apart.
  std::string digest() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// For reports: path, size and digest, and how the text was taken.
std::string described(const TextFile&, const std::string& how);
std::string path_described(const std::string& source);  // the path alone, whether it was described or not

}  // namespace fewbit
