#include "src/core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/core/error.h"
#include "src/core/files/bus_error.h"
#include "src/core/host_memory.h"
#include "src/core/strings.h"

namespace fewbit {

namespace {

// Opens a regular file to read; the size goes to `size`.
int open_regular(const std::filesystem::path& path, size_t& size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO answers at once
  if (fd < 0) fail(ErrorKind::io, path.string() + ": cannot open: " + std::strerror(errno));
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    fail(ErrorKind::io, path.string() + ": not a regular file");
  }
  size = static_cast<size_t>(st.st_size);
  return fd;
}

// Maps a range that begins at a page, and closes the file.
const uint8_t* map_and_close(int fd, int64_t begin, size_t count, const std::filesystem::path& path) {
  void* p = ::mmap(nullptr, count, PROT_READ, MAP_SHARED, fd, begin);
  const int error = errno;
  ::close(fd);
  if (p != MAP_FAILED) {
    name_mapped_range(p, count, path.string());
    return static_cast<const uint8_t*>(p);
  }
  const bool limited = error == ENOMEM;
  fail(limited ? ErrorKind::memory : ErrorKind::io,
       path.string() + ": cannot map " + human_bytes(static_cast<int64_t>(count)) + ": " + std::strerror(error) +
           (limited ? "; raise the limit of the address space (ulimit -v)" : ""));
}

void unmap(std::span<const uint8_t> bytes) {
  forget_mapped_range(bytes.data());
  ::munmap(const_cast<uint8_t*>(bytes.data()), bytes.size());
}

// A page behind the end of a file that became shorter would end the process.
void need_size(const std::filesystem::path& path, int64_t bytes) {
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && st.st_size < bytes)
    fail(ErrorKind::io, path.string() + ": became shorter while it was in use: " + std::to_string(st.st_size) +
                            " bytes, expected at least " + std::to_string(bytes));
}

int64_t page_bytes() { return ::sysconf(_SC_PAGESIZE); }

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = open_regular(path, size_);
  if (size_ > 0)
    data_ = map_and_close(fd, 0, size_, path);
  else
    ::close(fd);
}

MappedFile MappedFile::windowed(const std::filesystem::path& path) {
  size_t size = 0;
  ::close(open_regular(path, size));
  // A quarter: the shards of a model are many, and what the program computes with needs room too.
  const std::optional<HostLimit> left = address_space_left();
  if (!left || static_cast<int64_t>(size) <= left->bytes / 4) return MappedFile(path);
  MappedFile file(path, size);
  file.windows_ = std::make_unique<Windows>();
  return file;
}

std::span<const uint8_t> MappedFile::bytes() const {
  FEWBIT_ASSERT(whole());
  return {data_, size_};
}

const uint8_t* MappedFile::at(int64_t begin, int64_t count) const {
  FEWBIT_ASSERT(begin >= 0 && count >= 0 && begin + count <= size());
  if (count > 0) need_size(path_, begin + count);
  if (whole() || count == 0) return data_ + begin;
  const int64_t first = begin / page_bytes() * page_bytes(), bytes = begin + count - first;
  const std::lock_guard lock(windows_->guard);
  const auto [it, fresh] = windows_->mapped.try_emplace({begin, count});
  if (fresh) try {
      size_t size_now = 0;
      const int fd = open_regular(path_, size_now);
      it->second = {map_and_close(fd, first, static_cast<size_t>(bytes), path_), static_cast<size_t>(bytes)};
    } catch (...) {
      windows_->mapped.erase(it);
      throw;
    }
  return it->second.data() + (begin - first);
}

MappedFile::MappedFile(MappedFile&& o) noexcept
    : path_(std::move(o.path_)),
      data_(std::exchange(o.data_, nullptr)),
      size_(std::exchange(o.size_, 0)),
      windows_(std::move(o.windows_)) {}

MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(windows_, o.windows_);
  return *this;
}

void MappedFile::forget(int64_t begin, int64_t count) const {
  if (!whole()) {
    const std::lock_guard lock(windows_->guard);
    const auto it = windows_->mapped.find({begin, count});
    if (it == windows_->mapped.end()) return;
    unmap(it->second);
    windows_->mapped.erase(it);
    return;
  }
  const int64_t page = page_bytes();
  const int64_t first = (begin + page - 1) / page * page, last = (begin + count) / page * page;
  if (last > first) ::madvise(const_cast<uint8_t*>(data_) + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_) unmap({data_, size_});
  if (windows_)
    for (const auto& [range, bytes] : windows_->mapped) unmap(bytes);
}

}  // namespace fewbit
