#include "src/core/text/shown.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace fewbit {
namespace {

constexpr size_t kLines = 20;       // a screen shows them, and who mends twenty things tries again anyway
constexpr size_t kLineHead = 3000;  // bytes: room for a path of the system's longest and a sentence,
constexpr size_t kLineTail = 600;   // and for what stands at the end of a message, which is what to do

// Bytes of the UTF-8 character that begins here, and its code; 0 where there is none.
size_t character_at(std::string_view s, size_t i, uint32_t& code) {
  const auto byte = [&](size_t k) { return static_cast<uint8_t>(s[i + k]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return code = lead, 1;
  const size_t count = lead >= 0xF0 && lead < 0xF5 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (count == 0 || lead >= 0xF5 || i + count > s.size()) return 0;
  code = lead & (0xFFU >> (count + 1));
  for (size_t k = 1; k < count; ++k) {
    if ((byte(k) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(k) & 0x3FU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return code < kLeast[count] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : count;
}

bool acts_on_a_terminal(uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool direction =
      (code >= 0x200E && code <= 0x200F) || (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return control || direction || code == 0x2028 || code == 0x2029;
}

void append_number(std::string& out, const char* format, uint32_t number) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, format, number);
  out += buffer;
}

// The characters from `from` on until `bytes` are written or the text ends; `from` moves behind them.
std::string escaped(std::string_view text, size_t& from, size_t bytes) {
  std::string out;
  while (from < text.size() && out.size() < bytes) {
    uint32_t code = 0;
    const size_t count = character_at(text, from, code);
    if (count == 0)
      append_number(out, "\\x%02x", static_cast<uint8_t>(text[from]));
    else if (!acts_on_a_terminal(code))
      out += text.substr(from, count);
    else
      append_number(out, code < 0x80 ? "\\x%02x" : "\\u%04x", code);
    from += count == 0 ? 1 : count;
  }
  return out;
}

std::string shown_line(std::string_view line) {
  size_t at = 0;
  std::string out = escaped(line, at, kLineHead);
  if (at == line.size()) return out;
  if (line.size() - at > kLineTail) {
    out += " ... ";
    at = line.size() - kLineTail;
    while (at < line.size() && (static_cast<uint8_t>(line[at]) & 0xC0) == 0x80) ++at;
  }
  return out + escaped(line, at, 4 * kLineTail);
}

}  // namespace

std::string shown(std::string_view text, size_t bytes) {
  size_t at = 0;
  std::string out = escaped(text, at, bytes);
  return at < text.size() ? out + "..." : out;
}

std::string shown_message(std::string_view text) {
  std::string out;
  size_t lines = 0;
  for (size_t at = 0; at <= text.size(); ++lines) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (lines > 0 && lines < kLines) out += '\n';
    if (lines < kLines) out += shown_line(text.substr(at, end - at));
    at = end + 1;
  }
  return lines <= kLines ? out : out + "\n... and " + std::to_string(lines - kLines) + " more";
}

}  // namespace fewbit
