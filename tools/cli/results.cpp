#include "tools/cli/results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "src/core/error.h"
#include "src/core/file_io.h"
#include "src/ranks/launch.h"

namespace fewbit::cli {
namespace {

namespace fs = std::filesystem;

// "" where the file can be written; it is not changed, and gone again where it was not there.
std::string why_not_writable(const std::string& path) {
  if (path == "-" || launch_from_environment().rank != 0) return "";
  const File fresh = File::with_flags(path, O_WRONLY | O_CREAT | O_EXCL | O_NONBLOCK);
  if (fresh.open()) {
    ::unlink(path.c_str());
    return "";
  }
  const char* way_out = errno == ENOENT ? "; give a file in a folder that exists" : "";
  if (errno != EEXIST) return fmt::format("{}: cannot be written: {}{}", path, std::strerror(errno), way_out);
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && S_ISFIFO(st.st_mode)) return "";  // whoever reads it may come later
  const File old = File::with_flags(path, O_WRONLY | O_NONBLOCK);
  return old.open() ? "" : fmt::format("{}: cannot be written: {}", path, std::strerror(errno));
}

void write_all(const std::string& path, int flags, const std::string& text) {
  File file = File::with_flags(path, flags);
  if (!file.open()) file.refuse("cannot create");
  file.append_whole(text);
}

bool reader_is_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

}  // namespace

CLI::Validator writable_file() {
  return {[](const std::string& path) { return why_not_writable(path); }, ""};
}

void write_result(const std::string& path, const std::string& text) {
  std::error_code ec;
  const fs::file_status there = fs::symlink_status(path, ec);
  if (fs::exists(there) && !fs::is_regular_file(there)) return write_all(path, O_WRONLY | O_TRUNC, text);
  const std::string fresh = fmt::format("{}.{}.tmp", path, ::getpid());
  try {
    write_all(fresh, O_WRONLY | O_CREAT | O_TRUNC, text);
    fs::rename(fresh, path, ec);
    if (ec) fail(ErrorKind::io, fmt::format("{}: cannot write: {}", path, ec.message()));
  } catch (const Error&) {
    fs::remove(fresh, ec);
    throw;
  }
}

void print_result(const std::string& text) {
  flush_output();
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) throw OutputClosed{};
    if (n <= 0) fail(ErrorKind::io, fmt::format("standard output: cannot write: {}", std::strerror(errno)));
    at += static_cast<size_t>(n);
  }
}

void flush_output() {
  std::cout.flush();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  const int error = errno;
  if (error == EPIPE || reader_is_gone()) throw OutputClosed{};
  fail(ErrorKind::io,
       fmt::format("standard output: cannot write{}{}", error ? ": " : "", error ? std::strerror(error) : ""));
}

}  // namespace fewbit::cli
