#pragma once
// Internal to the safetensors container: a file being written. Nothing outside formats/containers includes this.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <utility>

#include "src/core/error.h"

namespace fewbit::safetensors {

// Closed with the object; errors carry path and the system's reason.
class OutFile {
 public:
  enum class Begin : uint8_t { anew, as_it_is };
  explicit OutFile(const std::filesystem::path& path, Begin begin = Begin::anew) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | (begin == Begin::anew ? O_TRUNC : 0) | O_CLOEXEC, 0644);
    if (fd_ < 0) refuse("cannot create");
  }
  ~OutFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }

  void write(const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, p, part(bytes));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) refuse("cannot write");
      p += n;
      bytes -= n;
    }
  }
  void write_at(int64_t at, const void* data, int64_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::pwrite(fd_, p, part(bytes), at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) refuse("cannot write");
      p += n;
      at += n;
      bytes -= n;
    }
  }
  // Gives the file so many bytes; those that nobody wrote take no room on the disk.
  void resize(int64_t bytes) {
    if (::ftruncate(fd_, bytes) != 0) refuse("cannot write");
  }
  // Some bytes from `at` on, at most `bytes`.
  int64_t read_some(int64_t at, void* data, int64_t bytes) const {
    for (;;) {
      const ssize_t n = ::pread(fd_, data, part(bytes), at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) refuse("cannot read back");
      return n;
    }
  }

  void close() {
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) refuse("cannot close");
  }
  [[noreturn]] void refuse(const char* what) const {
    fail(ErrorKind::io, path_.string() + ": " + what + ": " + std::strerror(errno));
  }

 private:
  static size_t part(int64_t bytes) { return static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30)); }
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace fewbit::safetensors
