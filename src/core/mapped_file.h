#pragma once
// A file mapped read-only for as long as the object lives.
#include <cstdint>
#include <filesystem>
#include <span>

namespace fewbit {

class MappedFile {
 public:
  // Error{io} with the path and the system's reason. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  ~MappedFile();
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  // Gives the memory of the whole pages inside [begin, begin + count) back to the system. They are read again when they
  // are asked for.
  void forget(int64_t begin, int64_t count) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fewbit
