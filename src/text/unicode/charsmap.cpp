// The double array: a unit has a label (the byte that leads to it), the offset of its children and whether a value
// stands among them (bit 8); a unit with bit 31 is that value. Nothing in it is trusted: every index is checked.
#include "src/text/unicode/charsmap.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>

#include "src/core/error.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

constexpr size_t kWholeCluster = 6;  // bytes; a cluster of as many goes character by character
constexpr size_t kMaxText = 1024;    // bytes of a replacement; Unicode's longest has 33

std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> v{};
  v.fill(-1);
  const std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < digits.size(); ++i) v[static_cast<uint8_t>(digits[i])] = static_cast<int8_t>(i);
  return v;
}

// Of whole groups of four characters, the last one filled up with '='.
std::string from_base64_text(std::string_view s, const std::string& where) {
  const std::array<int8_t, 256> values = base64_values();
  const auto broken = [&](size_t at) {
    fail(ErrorKind::checkpoint, fmt::format("{}: expected base64, found something else at character {}", where, at));
  };
  if (s.size() % 4 != 0) broken(s.size());
  const size_t padding = s.ends_with("==") ? 2 : s.ends_with('=') ? 1 : 0;
  std::string out;
  out.reserve(s.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < s.size() - padding; ++i) {
    const int8_t value = values[static_cast<uint8_t>(s[i])];
    if (value < 0) broken(i);
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3)
      for (const int shift : {16, 8, 0}) out += static_cast<char>(bits >> shift & 0xFF);
  }
  if (padding == 1) out += {static_cast<char>(bits >> 10 & 0xFF), static_cast<char>(bits >> 2 & 0xFF)};
  if (padding == 2) out += static_cast<char>(bits >> 4 & 0xFF);
  return out;
}

uint32_t little_endian(std::string_view s, size_t at) {
  uint32_t v = 0;
  for (size_t k = 4; k-- > 0;) v = v << 8 | static_cast<uint8_t>(s[at + k]);
  return v;
}

// Of a unit of the double array.
bool has_value(uint32_t u) { return (u >> 8 & 1) != 0; }
uint32_t value_of(uint32_t u) { return u & 0x7FFFFFFF; }
uint32_t label_of(uint32_t u) { return u & 0x800000FF; }
uint32_t offset_of(uint32_t u) { return u >> 10 << (u >> 6 & 8); }

}  // namespace

Charsmap Charsmap::from_base64(std::string_view base64, const std::string& where) {
  const std::string blob = from_base64_text(base64, where);
  if (blob.size() < 4) fail(ErrorKind::checkpoint, where + ": expected a character map, found fewer than 4 bytes");
  const size_t bytes = little_endian(blob, 0);
  if (bytes == 0 || bytes % 4 != 0 || bytes > blob.size() - 4)
    fail(ErrorKind::checkpoint, fmt::format("{}: expected a trie of whole units within {} bytes, found one of {}",
                                            where, blob.size() - 4, bytes));
  Charsmap map;
  map.where_ = where;
  for (size_t i = 0; i < bytes; i += 4) map.units_.push_back(little_endian(blob, 4 + i));
  map.texts_ = blob.substr(4 + bytes);
  return map;
}

std::string_view Charsmap::text_at(uint32_t offset) const {
  if (offset > texts_.size())
    fail(ErrorKind::checkpoint,
         fmt::format("{}: a value is byte {} of the texts, which end at {}", where_, offset, texts_.size()));
  const std::string_view rest = std::string_view(texts_).substr(offset, kMaxText + 1);
  const std::string_view text = rest.substr(0, rest.find('\0'));
  if (text.size() > kMaxText || !is_utf8(text))
    fail(ErrorKind::checkpoint, fmt::format("{}: expected UTF-8 of at most {} bytes, found something else at byte {} "
                                            "of the texts",
                                            where_, kMaxText, offset));
  return text;
}

// The value of the shortest string of the map that `key` begins with.
bool Charsmap::find(std::string_view key, std::string_view* found) const {
  const auto unit_at = [&](size_t i) {
    if (i >= units_.size())
      fail(ErrorKind::checkpoint, fmt::format("{}: the trie points to unit {} of {}", where_, i, units_.size()));
    return units_[i];
  };
  size_t at = offset_of(unit_at(0));
  for (const char c : key) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) return false;  // ends a key of the map
    at ^= byte;
    const uint32_t unit = unit_at(at);
    if (label_of(unit) != byte) return false;
    at ^= offset_of(unit);
    if (!has_value(unit)) continue;
    *found = text_at(value_of(unit_at(at)));
    return true;
  }
  return false;
}

std::string Charsmap::apply(std::string_view text, size_t limit) const {
  std::string out;
  out.reserve(text.size());
  const auto put = [&](std::string_view s) {
    out += s;
    if (out.size() > limit)
      fail(ErrorKind::unsupported, fmt::format("{}: makes more than {} bytes of {}", where_, limit, text.size()));
  };
  const auto put_characters = [&](std::string_view s) {
    std::string_view found;
    for (size_t i = 0; i < s.size();) {
      const size_t begin = i;
      next_code(s, i);
      const std::string_view character = s.substr(begin, i - begin);
      put(find(character, &found) ? found : character);
    }
  };
  size_t begin = 0;
  utf8proc_int32_t state = 0;
  for (size_t i = 0; i < text.size();) {
    const auto code = static_cast<utf8proc_int32_t>(next_code(text, i));
    size_t after = i;
    const bool ends = i == text.size() || utf8proc_grapheme_break_stateful(
                                              code, static_cast<utf8proc_int32_t>(next_code(text, after)), &state);
    if (!ends) continue;
    const std::string_view cluster = text.substr(begin, i - begin);
    std::string_view found;
    if (cluster.size() < kWholeCluster && find(cluster, &found))
      put(found);
    else
      put_characters(cluster);
    begin = i;
  }
  return out;
}

}  // namespace fewbit
