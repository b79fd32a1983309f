// Normalizers on utf8proc.
#include "src/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "src/core/error.h"
#include "src/text/unicode/bert_text.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

// Nothing below U+0080 changes in any form; nothing below U+0300 in NFC (UAX #15, quick check).
bool is_normal_already(UnicodeForm form, std::string_view text) {
  const uint8_t limit = form == UnicodeForm::nfc ? 0xCC : 0x80;  // 0xCC is the first byte of U+0300
  return std::all_of(text.begin(), text.end(), [&](char c) { return static_cast<uint8_t>(c) < limit; });
}

std::string run_step(UnicodeForm form, std::string text, size_t) {
  if (is_normal_already(form, text)) return text;
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::nfc || form == UnicodeForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::nfkc || form == UnicodeForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owned(raw, std::free);
  if (n < 0) fail(ErrorKind::memory, std::string("tokenizer: Unicode normalization failed: ") + utf8proc_errmsg(n));
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(n)};
}

std::string run_step(const LowercaseText&, const std::string& text, size_t) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const uint32_t c = next_code(text, i);
    append_code(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    if (c == 0x130) append_code(out, 0x307);  // the one letter whose lower case is two characters: i and a dot
  }
  return out;
}

std::string run_step(const StripText& strip, const std::string& text, size_t) {
  size_t begin = 0, end = text.size();
  while (strip.left && begin < end) {
    size_t next = begin;
    if (!is_space(next_code(text, next))) break;
    begin = next;
  }
  while (strip.right && end > begin) {
    const size_t start = previous_start(text, end);
    size_t i = start;
    if (!is_space(next_code(text, i))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string run_step(const PrependText& prepend, std::string text, size_t) {
  return text.empty() ? text : prepend.text + text;
}

std::string run_step(const ReplaceText& replace, const std::string& text, size_t limit) {
  return replace_all(replace, text, limit);
}

std::string run_step(const Charsmap& map, const std::string& text, size_t limit) { return map.apply(text, limit); }
std::string run_step(const CleanText&, const std::string& text, size_t) { return clean_text(text); }
std::string run_step(const SpaceIdeographs&, const std::string& text, size_t) { return space_ideographs(text); }
std::string run_step(const DropMarks& drop, const std::string& text, size_t) { return drop_marks(text, drop.all); }

void check_size(size_t bytes, size_t limit) {
  if (bytes > limit)
    fail(ErrorKind::unsupported, "tokenizer: a step makes a text of " + std::to_string(bytes) +
                                     " bytes; supported here: " + std::to_string(limit) + " at most");
}

}  // namespace

std::string replace_all(const ReplaceText& replace, std::string_view text, size_t limit) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (const Match& m : replace.pattern.find_all(text)) {
    out += text.substr(done, m.begin - done);
    out += replace.content;
    done = m.end;
    check_size(out.size(), limit);
  }
  out += text.substr(done);
  return out;
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string text) {
  const size_t limit = grown_limit(text.size());
  for (const NormalizerStep& step : steps) {
    text = std::visit([&](const auto& s) { return run_step(s, std::move(text), limit); }, step);
    check_size(text.size(), limit);
  }
  return text;
}

}  // namespace fewbit
