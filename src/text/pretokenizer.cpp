// Pre-tokenizers: splitting moves borders only; the other steps write a new text word by word.
#include "src/text/pretokenizer.h"

#include <algorithm>

#include "src/text/byte_alphabet.h"
#include "src/text/utf8.h"

namespace fewbit {
namespace {

struct Part {
  size_t begin = 0, end = 0;
  bool delimiter = false;
};

// Matches and the stretches between them, in order.
std::vector<Part> parts_of(const SplitWords& split, std::string_view word) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const Match& m : split.pattern.find_all(word)) {
    if (m.begin > done) parts.push_back({done, m.begin, split.invert});
    parts.push_back({m.begin, m.end, !split.invert});
    done = m.end;
  }
  if (done < word.size()) parts.push_back({done, word.size(), split.invert});
  return parts;
}

// Joins parts of `parts` (in order) as the behaviour wants; what is to be removed stays marked as a
// delimiter.
std::vector<Part> join_parts(const std::vector<Part>& parts, SplitBehavior behavior) {
  if (behavior == SplitBehavior::removed) return parts;
  std::vector<Part> out;
  const bool backwards = behavior == SplitBehavior::merged_with_next;
  bool previous = false;
  for (size_t k = 0; k < parts.size(); ++k) {
    const Part& p = parts[backwards ? parts.size() - 1 - k : k];
    const bool joins = behavior == SplitBehavior::contiguous ? p.delimiter == previous
                       : behavior == SplitBehavior::isolated ? false
                                                             : p.delimiter && !previous;
    if (joins && !out.empty()) {
      if (backwards)
        out.back().begin = p.begin;
      else
        out.back().end = p.end;
    } else {
      out.push_back({p.begin, p.end, false});
    }
    previous = p.delimiter;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

void run_step(const SplitWords& split, Words& words) {
  std::vector<Word> list;
  list.reserve(words.list.size());
  for (size_t i = 0; i < words.list.size(); ++i) {
    const Word& w = words.list[i];
    for (const Part& p : join_parts(parts_of(split, words[i]), split.behavior))
      if (!p.delimiter && p.end > p.begin)
        list.push_back({w.begin + p.begin, w.begin + p.end, w.at_start && p.begin == 0});
  }
  words.list = std::move(list);
}

// A new text from append(out, word, at_start), called for every word.
template <class Append>
void rewrite(Words& words, const Append& append) {
  std::string out;
  out.reserve(words.text.size() + words.text.size() / 4);
  for (size_t i = 0; i < words.list.size(); ++i) {
    const size_t begin = out.size();
    append(out, words[i], words.list[i].at_start);
    words.list[i].begin = begin;
    words.list[i].end = out.size();
  }
  words.text = std::move(out);
}

void run_step(const PrefixSpace&, Words& words) {
  rewrite(words, [](std::string& out, std::string_view word, bool) {
    if (word[0] != ' ') out += ' ';
    out += word;
  });
}

void run_step(const ByteCharacters&, Words& words) {
  rewrite(words, [](std::string& out, std::string_view word, bool) {
    for (char c : word) append_code(out, kByteAlphabet.code_of[static_cast<uint8_t>(c)]);
  });
}

void run_step(const MarkSpaces& marks, Words& words) {
  rewrite(words, [&](std::string& out, std::string_view word, bool at_start) {
    const bool marked = word[0] == ' ' || word.substr(0, marks.mark.size()) == marks.mark;
    const bool wanted = marks.scheme == PrependScheme::always || (marks.scheme == PrependScheme::first && at_start);
    if (wanted && !marked) out += marks.mark;
    for (char c : word)
      if (c == ' ')
        out += marks.mark;
      else
        out += c;
  });
}

}  // namespace

Words pre_tokenize(const std::vector<PreTokenizerStep>& steps, std::string text, bool at_start) {
  Words words;
  words.text = std::move(text);
  if (!words.text.empty()) words.list.push_back({0, words.text.size(), at_start});
  for (const PreTokenizerStep& step : steps) std::visit([&](const auto& s) { run_step(s, words); }, step);
  return words;
}

}  // namespace fewbit
