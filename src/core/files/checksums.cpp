// A name with a line feed or a backslash in it is written as coreutils do: escaped, with a backslash in front of the
// line.
#include "src/core/files/checksums.h"

#include <algorithm>
#include <string_view>

#include "src/core/digest.h"
#include "src/core/files/sha256.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

constexpr std::string_view kOwnDigest = "# XXH3-128 of the lines above: ";
constexpr std::string_view kBetween = "  ";

std::string escaped(const std::string& name) {
  std::string s;
  for (const char c : name) s += c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  return s;
}

std::string unescaped(std::string_view name) {
  std::string s;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '\\' || i + 1 == name.size()) {
      s += name[i];
      continue;
    }
    const char c = name[++i];
    s += c == 'n' ? '\n' : c == 'r' ? '\r' : c;
  }
  return s;
}

// Whether it is a line of a file, which then is in `files`.
bool read_line(std::string_view line, Checksums& files) {
  const bool is_escaped = !line.empty() && line[0] == '\\';
  if (is_escaped) line.remove_prefix(1);
  if (line.size() <= kSha256Digits + kBetween.size() || line.substr(kSha256Digits, kBetween.size()) != kBetween)
    return false;
  const std::string_view digits = line.substr(0, kSha256Digits);
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return false;
  const std::string_view name = line.substr(kSha256Digits + kBetween.size());
  return files.emplace(is_escaped ? unescaped(name) : std::string(name), digits).second;
}

}  // namespace

std::string checksums_text(const Checksums& files) {
  std::string lines;
  for (const auto& [name, sha256] : files) {
    const std::string written = escaped(name);
    lines += (written == name ? "" : "\\") + sha256 + std::string(kBetween) + written + "\n";
  }
  return lines + std::string(kOwnDigest) + digest_of(lines) + "\n";
}

ReadChecksums read_checksums(const std::string& text) {
  ReadChecksums read;
  size_t number = 0;
  bool whole = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    ++number;
    if (line == std::string(kOwnDigest) + digest_of(std::string_view(text).substr(0, at)) && end + 1 == text.size())
      whole = true;
    else if (!read_line(line, read.files))
      read.problems.push_back("line " + std::to_string(number) + " is not what was written");
    at = end + 1;
  }
  if (!whole && read.problems.empty())
    read.problems.push_back("its lines are not those that its last line was made of, or that line is missing");
  return read;
}

}  // namespace fewbit
