#pragma once
// A file mapped read-only for as long as the object lives: whole, or through windows where the address space of the
// process is limited (`ulimit -v`) and the file would take too much of it.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace fewbit {

class MappedFile {
 public:
  // Error{io} with the path and the system's reason. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  // Maps nothing but the ranges that at() is asked for, where the whole would take more than a quarter of the address
  // space that is left; whole otherwise.
  static MappedFile windowed(const std::filesystem::path& path);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();
  std::span<const uint8_t> bytes() const;  // of a file that is mapped whole
  int64_t size() const { return static_cast<int64_t>(size_); }
  bool whole() const { return windows_ == nullptr; }
  // The bytes [begin, begin + count) of the file, from any thread. A window stays until it is forgotten with the same
  // two numbers. Error{io} where it cannot be mapped.
  const uint8_t* at(int64_t begin, int64_t count) const;
  // Gives the memory of the whole pages inside [begin, begin + count) back to the system. They are read again when they
  // are asked for: of a file that is mapped whole through the pointers that there are, of a windowed one by at().
  void forget(int64_t begin, int64_t count) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile(std::filesystem::path path, size_t size) : path_(std::move(path)), size_(size) {}

  // The ranges of a file that is not mapped whole, by begin and count. The file is opened for each of them: a model has
  // more shards than a process may always have open files.
  struct Windows {
    std::mutex guard{};
    std::map<std::pair<int64_t, int64_t>, std::span<const uint8_t>> mapped{};  // whole pages
  };

  std::filesystem::path path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<Windows> windows_;
};

}  // namespace fewbit
