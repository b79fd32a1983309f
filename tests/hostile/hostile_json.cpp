// The broken JSON that every reader of JSON is given.
#include "src/core/rng.h"
#include "tests/hostile/contained.h"

namespace fewbit::test {
namespace {

// The document with `text` as one more member, in front.
std::string with_member(const std::string& document, const std::string& text) {
  return "{" + text + "," + document.substr(document.find('{') + 1);
}

std::string utf16(const std::string& ascii, bool big) {
  std::string s = big ? "\xfe\xff" : "\xff\xfe";
  for (const char c : ascii) s += big ? std::string{'\0', c} : std::string{c, '\0'};
  return s;
}

std::vector<Hostile> other_files() {
  std::string noise(4096, '\0');
  Rng rng(1, "hostile");
  for (char& c : noise) c = static_cast<char>(rng.below(256));
  return {
      {"an empty file", ""},
      {"blanks only", " \n\t\r\n "},
      {"a page that a failed download left", "<!DOCTYPE html><html><body>404</body></html>"},
      {"a pointer of git-lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"},
      {"YAML", "architectures:\n  - LlamaForCausalLM\n"},
      {"a literal of Python", "{'a': True, 'b': None}"},
      {"a pickle", std::string("\x80\x04\x95\x10\x00\x00\x00", 7) + "}q."},
      {"an archive", std::string("PK\x03\x04\x14\x00\x00\x00", 8)},
      {"a compressed file", std::string("\x1f\x8b\x08\x00\x00\x00", 6)},
      {"a program", std::string("\x7f"
                                "ELF\x02\x01\x01\x00",
                                8)},
      {"a megabyte of zeros", std::string(1 << 20, '\0')},
      {"noise", noise},
      {"escape sequences of a terminal", "\x1b]0;owned\x07\x1b[2J{}"},
  };
}

std::vector<Hostile> broken(const std::string& d) {
  const std::string most = d.substr(0, d.find_last_of('}'));
  return {
      {"cut in the middle", d.substr(0, d.size() / 2)},
      {"cut before the last brace", most},
      {"something behind the end", d + "x"},
      {"two documents", d + d},
      {"a comma before the end", most + ",}"},
      {"no comma between members", with_member(d, "\"x\":1 \"y\":2")},
      {"no colon", with_member(d, "\"x\" 1")},
      {"a key without a value", with_member(d, "\"x\":")},
      {"a value without a key", with_member(d, "1")},
      {"a key without quotes", with_member(d, "x:1")},
      {"single quotes", with_member(d, "'x':1")},
      {"a comment", with_member(d, "/* */\"x\":1")},
      {"a bracket of the other kind", with_member(d, "\"x\":[1}")},
      {"NaN", with_member(d, "\"x\":NaN")},
      {"Infinity", with_member(d, "\"x\":-Infinity")},
      {"a hexadecimal number", with_member(d, "\"x\":0x10")},
      {"a number with a zero in front", with_member(d, "\"x\":007")},
      {"a number with a plus", with_member(d, "\"x\":+7")},
      {"a number that ends with its point", with_member(d, "\"x\":7.")},
      {"a number beyond a double", with_member(d, "\"x\":1e999"), "beyond"},
      {"a negative number beyond a double", with_member(d, "\"x\":-1e999"), "beyond"},
      {"a number of a thousand digits", with_member(d, "\"x\":1" + std::string(1000, '0')), "beyond"},
      {"half of a surrogate pair", with_member(d, R"("x":"\ud800")")},
      {"the halves of a pair the wrong way round", with_member(d, R"("x":"\udc00\ud800")")},
      {"an escape that there is not", with_member(d, R"("x":"\q")")},
      {"an escape of too few digits", with_member(d, R"("x":"\u12")")},
      {"a line end in a string", with_member(d, "\"x\":\"a\nb\"")},
      {"a zero byte in a string", with_member(d, std::string("\"x\":\"a\0b\"", 9))},
      {"a control character in a string", with_member(d, "\"x\":\"\x1b[31m\"")},
      {"a string that is not closed", with_member(d, "\"x\":\"a")},
      {"bytes that are no UTF-8", with_member(d, "\"x\":\"\xff\xfe\"")},
      {"a slash in two bytes", with_member(d, "\"x\":\"\xc0\xaf\"")},
      {"a character cut short", with_member(d, "\"x\":\"\xe2\x82\"")},
      {"UTF-16, little end first", utf16(d, false)},
      {"UTF-16, big end first", utf16(d, true)},
      {"half of a byte order mark", "\xef\xbb" + d},
  };
}

std::vector<Hostile> too_much(const std::string& d) {
  constexpr size_t kMillion = 1'000'000;
  return {
      {"a million lists in one another", repeated("[", kMillion), "nested"},
      {"a million objects in one another", repeated("{\"a\":", 5 * kMillion), "nested"},
      {"lists and objects in one another", repeated("[{\"a\":", 5 * kMillion), "nested"},
      {"a million lists, closed", repeated("[", kMillion) + repeated("]", kMillion), "nested"},
      {"a member nested a million deep", with_member(d, "\"x\":" + repeated("[", kMillion)), "nested"},
      {"a million closing brackets", repeated("]", kMillion)},
      {"a million quotes", repeated("\"", kMillion + 1)},
      {"a million minus signs", repeated("-", kMillion)},
      {"a member of ten million empty lists", with_member(d, "\"x\":[" + repeated("[],", 30 * kMillion) + "0]")},
      {"a member of five million empty objects", with_member(d, "\"x\":[" + repeated("{},", 15 * kMillion) + "0]")},
  };
}

std::vector<Hostile> odd(const std::string& d) {
  std::string keys;
  for (int i = 0; i < 200'000; ++i) keys += "\"k" + std::to_string(i) + "\":0,";
  return {
      {"null", "null"},
      {"true", "true"},
      {"a number", "7"},
      {"a string", "\"text\""},
      {"an empty list", "[]"},
      {"a list of the document", "[" + d + "]"},
      {"an empty object", "{}", "", true},
      {"a byte order mark", "\xef\xbb\xbf" + d, "", true},
      {"200,000 more keys", with_member(d, keys + "\"k\":0"), "", true},
      {"the same key 100,000 times", with_member(d, repeated("\"x\":0,", 600'000) + "\"x\":0"), "", true},
      {"a key with a zero byte", with_member(d, R"("a\u0000b":1)"), "", true},
      {"an empty key", with_member(d, "\"\":1"), "", true},
      {"a string of a megabyte", with_member(d, "\"x\":\"" + std::string(1 << 20, 'a') + "\""), "", true},
      {"escape sequences in a string", with_member(d, R"("x":"\u001b]0;owned\u0007\u001b[2J")"), "", true},
      {"a member 150 deep", with_member(d, "\"x\":" + repeated("[", 150) + repeated("]", 150)), "", true},
  };
}

}  // namespace

std::vector<Hostile> hostile_json(const std::string& document) {
  std::vector<Hostile> all;
  for (auto& some : {other_files(), broken(document), too_much(document), odd(document)})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace fewbit::test
