#include "src/core/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "src/core/error.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// What renameat2 says where the kernel or the file system has not got the flag.
bool lacking(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

[[noreturn]] void refuse_rename(const fs::path& from, const fs::path& to) {
  fail(ErrorKind::io, from.string() + ": cannot rename to " + to.string() + ": " + std::strerror(errno));
}

}  // namespace

File File::with_flags(const fs::path& path, int flags) {
  return {path, ::open(path.c_str(), flags | O_CLOEXEC, 0666)};  // the umask takes from 0666 what it takes
}

File File::read(const fs::path& path) {
  File f = with_flags(path, O_RDONLY | O_NONBLOCK);  // a FIFO answers at once
  if (!f.open()) f.refuse("cannot open");
  struct stat st {};
  if (::fstat(f.fd_, &st) != 0 || !S_ISREG(st.st_mode)) fail(ErrorKind::io, path.string() + ": not a regular file");
  return f;
}

File File::append(const fs::path& path) {
  File f = with_flags(path, O_RDWR | O_CREAT | O_APPEND);
  if (!f.open()) f.refuse("cannot open");
  return f;
}

File::File(File&& o) noexcept : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}

File& File::operator=(File&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::refuse(const char* what) const {
  fail(ErrorKind::io, path_.string() + ": " + what + ": " + std::strerror(errno));
}

int64_t File::size() const {
  struct stat st {};
  if (::fstat(fd_, &st) != 0) refuse("cannot stat");
  return st.st_size;
}

void File::read_at(int64_t begin, char* to, int64_t bytes) const {
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, static_cast<size_t>(bytes), begin);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse("cannot read");
    if (n == 0) fail(ErrorKind::io, path_.string() + ": became shorter while it was read");
    begin += n;
    to += n;
    bytes -= n;
  }
}

std::string File::read_all() const {
  std::string text(static_cast<size_t>(size()), '\0');
  read_at(0, text.data(), static_cast<int64_t>(text.size()));
  return text;
}

void File::append_whole(std::string_view bytes) {
  const int64_t before = size();
  const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
  if (n == static_cast<ssize_t>(bytes.size())) return;
  const int error = n < 0 ? errno : ENOSPC;  // a short write of a file means a full disk or a limit
  (void)!::ftruncate(fd_, before);           // a part that stays is cut by whoever reads it next
  errno = error;
  refuse("cannot write");
}

void File::cut(int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0) refuse("cannot cut");
}

void File::sync() {
  if (::fsync(fd_) != 0) refuse("cannot be made safe on the disk");
}

// By a stream, for the size of a file of /proc is told as 0.
std::string text_or_empty(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void sync_file(const fs::path& path) { File::read(path).sync(); }

void sync_folder(const fs::path& path) {
  File f = File::with_flags(path, O_RDONLY | O_DIRECTORY);
  if (!f.open()) f.refuse("cannot open");
  if (::fsync(f.fd()) != 0 && !lacking(errno)) f.refuse("cannot be made safe on the disk");
}

void sync_tree(const fs::path& folder) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_symlink(ec)) continue;
    if (it->is_directory(ec)) sync_tree(it->path());
    if (it->is_regular_file(ec)) sync_file(it->path());
  }
  if (ec) fail(ErrorKind::io, folder.string() + ": cannot read the folder: " + ec.message());
  sync_folder(folder);
}

bool rename_to_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EEXIST) return false;
  if (!lacking(errno)) refuse_rename(from, to);
  std::error_code ec;
  if (fs::exists(fs::symlink_status(to, ec))) return false;
  if (::rename(from.c_str(), to.c_str()) == 0) return true;  // still refuses to replace a folder with something in it
  if (errno == EEXIST || errno == ENOTEMPTY) return false;
  refuse_rename(from, to);
}

bool exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (!lacking(errno)) refuse_rename(a, b);
  return false;
}

}  // namespace fewbit
