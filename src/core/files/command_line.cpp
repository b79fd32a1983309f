#include "src/core/files/command_line.h"

#include <fstream>
#include <string_view>
#include <vector>

namespace fewbit {
namespace {

std::vector<std::string> words_of_this_process() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string s = "'";
  for (const char ch : word) s += ch == '\'' ? std::string("'\\''") : std::string(1, ch);
  return s + "'";
}

std::string this_command() {
  std::string s;
  for (const std::string& word : words_of_this_process()) {
    if (!s.empty()) s += ' ';
    s += shell_word(word);
  }
  return s;
}

std::string resume_command() {
  std::string s;
  for (const std::string& word : words_of_this_process())
    if (word != "--restart" && word != "--resume") s += shell_word(word) += ' ';
  return s.empty() ? s : s + "--resume";
}

}  // namespace fewbit
