#include "src/text/pattern.h"

namespace fewbit {
namespace {

size_t step_past(std::string_view s, size_t i) {
  do ++i;
  while (i < s.size() && (static_cast<uint8_t>(s[i]) & 0xC0) == 0x80);
  return i;
}

}  // namespace

Pattern Pattern::literal(std::string text) {
  Pattern p;
  p.literal_ = std::move(text);
  return p;
}

Pattern Pattern::regex(std::string_view oniguruma, const std::string& where) {
  Pattern p;
  p.regex_.emplace(pcre_from_oniguruma(oniguruma, where), Regex::Use::texts, where);
  return p;
}

std::vector<Match> Pattern::find_literal(std::string_view subject) const {
  std::vector<Match> out;
  if (literal_.empty()) return out;
  for (size_t i = subject.find(literal_); i != std::string_view::npos; i = subject.find(literal_, i + literal_.size()))
    out.push_back({i, i + literal_.size()});
  return out;
}

std::vector<Match> Pattern::find_all(std::string_view subject) const {
  if (!regex_) return find_literal(subject);
  std::vector<Match> out;
  Regex::Effort effort(subject.size());
  for (size_t start = 0; start <= subject.size();) {
    const std::optional<Match> m = regex_->search(subject, start, effort);
    if (!m) break;
    if (m->begin == m->end && !out.empty() && out.back().end == m->end) {
      start = step_past(subject, start);
    } else {
      out.push_back(*m);
      start = m->end;
    }
  }
  return out;
}

}  // namespace fewbit
