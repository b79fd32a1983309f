// A trie over bytes, walked from every position where a needle may begin.
#include "src/text/added_tokens.h"

#include <algorithm>

#include "src/text/utf8.h"

namespace fewbit {
namespace {

size_t skip_space_back(std::string_view s, size_t end) {
  while (end > 0) {
    const size_t start = previous_start(s, end);
    size_t i = start;
    if (!is_space(next_code(s, i))) break;
    end = start;
  }
  return end;
}

size_t skip_space(std::string_view s, size_t begin) {
  while (begin < s.size()) {
    size_t i = begin;
    if (!is_space(next_code(s, i))) break;
    begin = i;
  }
  return begin;
}

bool stands_alone(std::string_view s, size_t begin, size_t end) {
  if (begin > 0) {
    size_t i = previous_start(s, begin);
    if (is_word(next_code(s, i))) return false;
  }
  return end >= s.size() || !is_word(next_code(s, end));
}

}  // namespace

void AddedTokenFinder::add(std::string_view needle, const AddedToken& token) {
  if (needle.empty()) return;
  first_[static_cast<uint8_t>(needle[0])] = true;
  int32_t node = 0;
  for (char c : needle) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
    const auto [it, fresh] = edges_.try_emplace(key, static_cast<int32_t>(token_at_.size()));
    if (fresh) token_at_.push_back(-1);
    node = it->second;
  }
  if (token_at_[static_cast<size_t>(node)] >= 0) return;  // the first of equal needles
  token_at_[static_cast<size_t>(node)] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t begin, size_t* end) const {
  const AddedToken* found = nullptr;
  int32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto it = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (const int32_t t = token_at_[static_cast<size_t>(node)]; t >= 0) {
      found = &tokens_[static_cast<size_t>(t)];
      *end = i + 1;
    }
  }
  return found;
}

std::vector<Segment> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Segment> out;
  size_t done = 0, next = 0;
  for (size_t i = 0; i < text.size(); i = next) {
    next = i + 1;
    if (!first_[static_cast<uint8_t>(text[i])]) continue;
    size_t end = 0;
    const AddedToken* t = longest_at(text, i, &end);
    if (!t) continue;
    next = end;
    if (t->single_word && !stands_alone(text, i, end)) continue;
    const size_t begin = t->lstrip ? std::max(done, skip_space_back(text, i)) : i;
    if (t->rstrip) end = skip_space(text, end);
    if (begin > done) out.push_back({done, begin, -1});
    out.push_back({begin, end, t->id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
  return out;
}

}  // namespace fewbit
