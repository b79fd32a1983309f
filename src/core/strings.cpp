#include "src/core/strings.h"

#include <cctype>
#include <cstdio>

namespace fewbit {

std::vector<std::string> split(std::string_view s, char separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t i = 0; i <= s.size(); ++i)
    if (i == s.size() || s[i] == separator) {
      out.emplace_back(s.substr(begin, i - begin));
      begin = i + 1;
    }
  return out;
}

std::vector<std::string> words(std::string_view s) {
  std::vector<std::string> out;
  size_t i = 0;
  while (i < s.size()) {
    while (i < s.size() && std::isspace(static_cast<unsigned char>(s[i]))) ++i;
    const size_t begin = i;
    while (i < s.size() && !std::isspace(static_cast<unsigned char>(s[i]))) ++i;
    if (i > begin) out.emplace_back(s.substr(begin, i - begin));
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) out += separator;
    out += parts[i];
  }
  return out;
}

bool starts_with(std::string_view s, std::string_view prefix) { return s.substr(0, prefix.size()) == prefix; }
bool ends_with(std::string_view s, std::string_view suffix) {
  return s.size() >= suffix.size() && s.substr(s.size() - suffix.size()) == suffix;
}

void add_note(std::string& notes, std::string_view note) {
  if (note.empty()) return;
  if (!notes.empty()) notes += "; ";
  notes += note;
}

namespace {

// Characters of the pattern from `i` on that stand for `c`; 0: they do not.
size_t stands_for(std::string_view p, size_t i, char c) {
  if (p[i] == '?') return 1;
  const size_t close = p[i] == '[' ? p.find(']', i + 2) : std::string_view::npos;
  if (close == std::string_view::npos) return p[i] == c && p[i] != '*' ? 1 : 0;
  std::string_view set = p.substr(i + 1, close - i - 1);
  const bool but = set.size() > 1 && set.front() == '!';
  if (but) set.remove_prefix(1);
  bool among = false;
  for (size_t k = 0; k < set.size(); ++k) {
    const bool range = k + 2 < set.size() && set[k + 1] == '-';
    among |= range ? set[k] <= c && c <= set[k + 2] : set[k] == c;
    if (range) k += 2;
  }
  return among != but ? close - i + 1 : 0;
}

}  // namespace

bool glob_match(std::string_view p, std::string_view t) {
  size_t i = 0, j = 0, star = std::string_view::npos, mark = 0;
  while (j < t.size()) {
    if (const size_t n = i < p.size() ? stands_for(p, i, t[j]) : 0) {
      i += n, ++j;
    } else if (i < p.size() && p[i] == '*') {
      star = i++;
      mark = j;
    } else if (star != std::string_view::npos) {
      i = star + 1;
      j = ++mark;
    } else {
      return false;
    }
  }
  while (i < p.size() && p[i] == '*') ++i;
  return i == p.size();
}

std::string hex_of(std::span<const uint8_t> bytes) {
  std::string s;
  for (const uint8_t b : bytes)
    for (const int nibble : {b >> 4, b & 15}) s += "0123456789abcdef"[nibble];
  return s;
}

std::string human_bytes(int64_t bytes) {
  static const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = static_cast<double>(bytes);
  int u = 0;
  while (v >= 1024 && u < 4) v /= 1024, ++u;
  char buf[32];
  std::snprintf(buf, sizeof buf, u == 0 ? "%.0f %s" : "%.2f %s", v, units[u]);
  return buf;
}

std::string human_count(int64_t n) {
  char buf[32];
  if (n >= 1000000000)
    std::snprintf(buf, sizeof buf, "%.2f B", n / 1e9);
  else if (n >= 1000000)
    std::snprintf(buf, sizeof buf, "%.1f M", n / 1e6);
  else if (n >= 10000)
    std::snprintf(buf, sizeof buf, "%.1f k", n / 1e3);
  else
    std::snprintf(buf, sizeof buf, "%lld", static_cast<long long>(n));
  return buf;
}

std::string human_seconds(double s) {
  char buf[32];
  if (s < 1)
    std::snprintf(buf, sizeof buf, "%.0f ms", s * 1e3);
  else if (s < 60)
    std::snprintf(buf, sizeof buf, "%.1f s", s);
  else
    std::snprintf(buf, sizeof buf, "%d min %02d s", static_cast<int>(s / 60), static_cast<int>(s) % 60);
  return buf;
}

}  // namespace fewbit
