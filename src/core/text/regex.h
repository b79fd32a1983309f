#pragma once
// Regular expressions that come from files: PCRE2 with limits, so that one which tries everything gives up. Nothing of
// it recurses on the stack.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace fewbit {

class Regex {
 public:
  enum class Use : uint8_t {
    names,  // matches from the beginning of a short text, as Python's re.match does
    texts,  // searches long ones, which are well-formed UTF-8; compiled to machine code where the library can
  };
  // Error{unsupported} "where: …" for what PCRE2 cannot compile or is too long.
  Regex(std::string_view pattern, Use use, const std::string& where);

  struct Span {
    size_t begin = 0, end = 0;  // bytes
  };
  // What all searches through one text, or of all patterns through one list of names, may spend together.
  class Effort {
   public:
    explicit Effort(size_t bytes);
    // Takes so many backtracking points; false where they are more than what is left.
    bool spend(uint32_t points);

   private:
    uint64_t left_;
  };
  // The first match that begins at `start` or, of texts, behind it. Error{unsupported} where the effort is spent.
  std::optional<Span> search(std::string_view text, size_t start, Effort& effort) const;
  bool matches(std::string_view text, Effort& effort) const { return search(text, 0, effort).has_value(); }

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  std::string where_;
  Use use_;
};

}  // namespace fewbit
