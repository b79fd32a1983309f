#include "src/text/files/text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/core/error.h"
#include "src/core/hash.h"

namespace fewbit {
namespace {

constexpr int64_t kSamples = 64, kSampleBytes = 4096;

// Whether a text that holds `before` in front of a line ends with a blank one.
bool ends_blank(std::string_view before) {
  return before.ends_with("\n\n") || before.ends_with("\n\r\n") || before == "\n" || before == "\r\n";
}

}  // namespace

TextFile::TextFile(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO answers at once
  if (fd_ < 0) fail(ErrorKind::io, path.string() + ": cannot open: " + std::strerror(errno));
  struct stat st {};
  const bool regular = ::fstat(fd_, &st) == 0 && S_ISREG(st.st_mode);
  size_ = st.st_size;
  if (regular && size_ > 0) return;
  ::close(fd_);
  if (!regular) fail(ErrorKind::io, path.string() + ": not a regular file");
  fail(ErrorKind::checkpoint, path.string() + ": expected a text, found an empty file; give one with words in it");
}

TextFile::~TextFile() { ::close(fd_); }

std::string TextFile::read(int64_t at, int64_t bytes) const {
  std::string out(static_cast<size_t>(std::clamp<int64_t>(size_ - at, 0, bytes)), '\0');
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, at + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(ErrorKind::io, fmt::format("{}: cannot read at byte {}: {}", path_.string(), at + static_cast<int64_t>(done),
                                      n < 0 ? std::strerror(errno) : "the file became shorter"));
    done += static_cast<size_t>(n);
  }
  return out;
}

int64_t TextFile::start_from(int64_t at, int64_t reach) const {
  if (at <= 0) return 0;
  if (at >= size_) return size_;
  const int64_t from = std::max<int64_t>(0, at - 3);  // as many bytes as a blank line's end has
  const std::string text = read(from, at - from + reach);
  const auto is_break = [](char c) { return c == '\n' || c == '\r'; };
  size_t line = std::string::npos, character = std::string::npos;
  for (size_t p = static_cast<size_t>(at - from); p < text.size(); ++p) {
    if (character == std::string::npos && (static_cast<uint8_t>(text[p]) & 0xc0) != 0x80) character = p;
    if (text[p - 1] != '\n') continue;
    if (line == std::string::npos) line = p;
    if (!is_break(text[p]) && ends_blank(std::string_view(text).substr(0, p))) return from + static_cast<int64_t>(p);
  }
  const size_t found = line != std::string::npos ? line : character;
  return found == std::string::npos ? at : from + static_cast<int64_t>(found);
}

std::string TextFile::digest() const {
  Hasher h;
  h.add(&size_, sizeof size_);
  const int64_t last = std::max<int64_t>(0, size_ - kSampleBytes);
  for (int64_t i = 0; i < kSamples; ++i) {
    const std::string sample = read(last * i / (kSamples - 1), kSampleBytes);
    h.add(sample.data(), sample.size());
  }
  return h.hex();
}

std::string described(const TextFile& file, const std::string& how) {
  return fmt::format("{} ({} bytes, digest {}, {})", file.path().string(), file.size(), file.digest(), how);
}

std::string path_described(const std::string& described_source) {
  std::string source = described_source;
  if (source.ends_with(" tokens)")) source.resize(std::min(source.size(), source.rfind(" (")));
  const size_t mark = source.rfind(" bytes, digest ");
  return mark == std::string::npos ? source : source.substr(0, source.rfind(" (", mark));
}

}  // namespace fewbit
