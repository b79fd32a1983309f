#include "src/text/jinja/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/text/jinja/characters.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

int64_t bound(Workspace& w, const Value& v) {
  if (v.whole()) return v.integer;
  if (v.is(Type::undefined)) w.refuse(why_undefined(v));
  w.refuse(fmt::format("slice indices must be integers or None, found {}", name_of(v.type)));
}

std::vector<std::string> cut_at_blanks(std::string_view s, int64_t most, bool right) {
  std::vector<std::string> parts;
  s = stripped(s, std::nullopt, !right, right);
  while (!(s = stripped(s, std::nullopt, !right, right)).empty()) {
    if (most-- == 0) {
      parts.emplace_back(stripped(s, std::nullopt, right, !right).size() ? s : "");
      break;
    }
    if (right) {
      size_t begin = s.size();
      while (begin > 0) {
        size_t at = previous_start(s, begin);
        const size_t before = at;
        if (is_blank(next_code(s, at))) break;
        begin = before;
      }
      parts.emplace_back(s.substr(begin));
      s = s.substr(0, begin);
    } else {
      size_t end = 0;
      while (end < s.size()) {
        size_t at = end;
        if (is_blank(next_code(s, at))) break;
        end = at;
      }
      parts.emplace_back(s.substr(0, end));
      s.remove_prefix(end);
    }
  }
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

size_t found_in(Workspace& w, std::string_view s, std::string_view what, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  // memmem is linear, which std::string::find is not.
  const void* at = ::memmem(s.data() + from, s.size() - from, what.data(), what.size());
  const size_t found = at ? static_cast<size_t>(static_cast<const char*>(at) - s.data()) : std::string_view::npos;
  w.read(static_cast<int64_t>(std::min(found, s.size()) - from + what.size()));
  return found;
}
size_t found_last(Workspace& w, std::string_view s, std::string_view what) {
  if (what.size() <= 64) {  // at most so many comparisons a byte
    const size_t found = s.rfind(what);
    w.read(static_cast<int64_t>(s.size() - (found == std::string_view::npos ? 0 : found) + what.size()));
    return found;
  }
  size_t last = std::string_view::npos;
  for (size_t at = 0; (at = found_in(w, s, what, at)) != std::string_view::npos; ++at) last = at;
  return last;
}

size_t byte_of(const Text& t, int64_t index) {
  if (t.ascii()) return static_cast<size_t>(index);
  size_t i = 0;
  while (index-- > 0) next_code(t.bytes, i);
  return i;
}
int64_t index_of(const Text& t, size_t byte) {
  if (t.ascii()) return static_cast<int64_t>(byte);
  int64_t n = 0;
  for (size_t i = 0; i < byte; ++n) next_code(t.bytes, i);
  return n;
}

Slice slice_of(Workspace& w, int64_t length, const Value& start, const Value& stop, const Value& step) {
  Slice s;
  if (!step.is(Type::none)) s.step = bound(w, step);
  if (s.step == 0) w.refuse("a slice with a step of 0");
  const bool back = s.step < 0;
  const int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
  const auto placed = [&](const Value& v, int64_t otherwise) {
    if (v.is(Type::none)) return otherwise;
    const int64_t i = bound(w, v);
    return i < 0 ? std::max(i + length, low) : std::min(i, high);
  };
  s.first = placed(start, back ? high : low);
  const int64_t last = placed(stop, back ? low : high);
  if (back ? last < s.first : s.first < last) {
    const auto span = static_cast<uint64_t>(back ? s.first - last : last - s.first);
    const uint64_t stride = back ? ~static_cast<uint64_t>(s.step) + 1 : static_cast<uint64_t>(s.step);
    s.count = static_cast<int64_t>((span - 1) / stride + 1);
  }
  if (s.count <= 1) s.step = 1;  // so that first + i * step stays small
  return s;
}

Value sliced(Workspace& w, const Value& v, const Slice& s) {
  const Text& t = *v.text;
  if (s.count == t.length && s.step == 1) return v;
  w.read(static_cast<int64_t>(t.bytes.size()));
  if (s.step == 1) {
    const size_t begin = byte_of(t, std::max<int64_t>(s.first, 0));
    size_t end = begin;
    for (int64_t i = 0; i < s.count; ++i) next_code(t.bytes, end);
    return w.text(t.bytes.substr(begin, end - begin), t.markup);
  }
  std::vector<size_t> starts;
  for (size_t i = 0; i < t.bytes.size(); next_code(t.bytes, i)) starts.push_back(i);
  std::string out;
  for (int64_t i = 0; i < s.count; ++i) {
    size_t at = starts[static_cast<size_t>(s.first + i * s.step)];
    const size_t begin = at;
    next_code(t.bytes, at);
    out += t.bytes.substr(begin, at - begin);
  }
  return w.text(std::move(out), t.markup);
}

std::string replaced(Workspace& w, const std::string& s, const std::string& from, const std::string& to, int64_t most) {
  std::string out;
  size_t at = 0;
  w.read(static_cast<int64_t>(s.size()));
  while (most != 0) {
    // An empty text is found in front of every character and at the end.
    const size_t found = from.empty() ? (at > s.size() ? std::string::npos : at) : found_in(w, s, from, at);
    if (found == std::string::npos) break;
    out += s.substr(at, found - at) + to;
    w.claim_text(static_cast<int64_t>(out.size()));
    w.read(static_cast<int64_t>(to.size()));
    at = found + from.size();
    --most;
    if (from.empty()) {
      if (found == s.size()) return out;
      next_code(s, at);
      out += s.substr(found, at - found);
    }
  }
  return at < s.size() ? out + s.substr(at) : out;
}

std::vector<std::string> cut(Workspace& w, const Value& text, std::optional<std::string> separator, int64_t most,
                             bool right) {
  const std::string& s = text.bytes();
  w.read(static_cast<int64_t>(s.size()));
  if (!separator) {
    const auto parts = cut_at_blanks(s, most, right);
    w.claim(static_cast<int64_t>(parts.size() * 40));
    return parts;
  }
  if (separator->empty()) w.refuse("a text cannot be split at an empty separator");
  std::vector<std::string> parts;
  size_t begin = 0, end = s.size();
  while (most-- != 0) {
    const size_t at =
        right ? found_last(w, std::string_view(s).substr(0, end), *separator) : found_in(w, s, *separator, begin);
    if (at == std::string::npos) break;
    w.claim(40);
    if (right) {
      parts.push_back(s.substr(at + separator->size(), end - at - separator->size()));
      end = at;
    } else {
      parts.push_back(s.substr(begin, at - begin));
      begin = at + separator->size();
    }
  }
  parts.push_back(right ? s.substr(0, end) : s.substr(begin));
  if (right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> lines_of(std::string_view s, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const size_t at = i;
    const uint32_t c = next_code(s, i);
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && i < s.size() && s[i] == '\n') ++i;
    lines.emplace_back(s.substr(begin, (keep_ends ? i : at) - begin));
    begin = i;
  }
  if (begin < s.size()) lines.emplace_back(s.substr(begin));
  return lines;
}

std::string padded(Workspace& w, const Text& t, int64_t width, const std::string& fill, char align) {
  const int64_t pad = width - t.length;
  if (pad <= 0) return t.bytes;
  w.claim_text(pad > (int64_t{1} << 40) ? INT64_MAX : pad * 4 + static_cast<int64_t>(t.bytes.size()));
  const int64_t left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += t.bytes;
  for (int64_t i = left; i < pad; ++i) out += fill;
  return out;
}

}  // namespace fewbit::jinja
