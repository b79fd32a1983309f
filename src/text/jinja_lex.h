#pragma once
// Pieces and tokens of a template: what the parser reads.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit::jinja {

template <class Table, class Item>
bool listed(const Table& table, const Item& word) {
  return std::find(table.begin(), table.end(), word) != table.end();
}

struct Piece {
  enum class Kind : uint8_t { text, output, block } kind;
  std::string content;
  int line;
};

struct Token {
  enum class Kind : uint8_t { end, name, number, string, symbol } kind = Kind::end;
  std::string text{};
};

// Complains with the template's name and the line that is being read.
class Refuser {
 public:
  explicit Refuser(std::string where) : where_(std::move(where)) {}
  int line = 1;
  [[noreturn]] void unsupported(const std::string& what) const;  // Error{unsupported}
  [[noreturn]] void broken(const std::string& what) const;       // Error{checkpoint}

 private:
  std::string where_;
};

// The template cut at {{ }}, {% %} and {# #}; the whitespace around them is taken away as their marks,
// trim_blocks and lstrip_blocks say. Comments are gone.
std::vector<Piece> cut(std::string_view source, Refuser&);
// The inside of a tag; the last token is an end.
std::vector<Token> tokens_of(std::string_view inside, const Refuser&);

}  // namespace fewbit::jinja
