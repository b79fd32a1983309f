// imatrix files: the older form has neither a mark nor sizes that anything checks, so every number may be untrue.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include "formats/gguf/imatrix.h"
#include "tests/hostile/contained.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

void read_imatrix_bytes(const std::string& bytes) {
  const std::vector<uint8_t> file(bytes.begin(),
                                  bytes.end());  // memory of its own, so that a sanitizer sees a byte too far
  for (const auto& [name, e] : gguf::parse_imatrix(file, "hostile.imatrix").entries)
    if (e.squares.size() * sizeof(float) > file.size()) std::abort();
}

class Old {
 public:
  Old& i32(int32_t v) {
    s_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  Old& f32(float v) {
    s_.append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  Old& text(const std::string& t) {
    i32(static_cast<int32_t>(t.size()));
    s_ += t;
    return *this;
  }
  Old& entry(const std::string& name, int32_t calls, int32_t sums) { return text(name).i32(calls).i32(sums); }
  std::string str(size_t zeros = 0) const { return s_ + std::string(zeros, '\0'); }

 private:
  std::string s_;
};

std::vector<Hostile> old_ones() {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const auto one = [](float v) { return Old().i32(1).entry("blk.0.attn_q.weight", 4, 2).f32(1).f32(v).str(); };
  return {
      {"no bytes", "", "no imatrix"},
      {"three bytes", "abc", "no imatrix"},
      {"no entries", Old().i32(0).str(), "no sums"},
      {"2^31 entries", Old().i32(kMost).str(64), "entries"},
      {"fewer than no entries", Old().i32(-1).str(64), "entries"},
      {"more entries than follow", Old().i32(3).entry("a", 1, 1).f32(1).str(40), ""},
      {"a name of 2^31 bytes", Old().i32(1).i32(kMost).str(64), "characters of a name"},
      {"a name of negative length", Old().i32(1).i32(-5).str(64), "characters of a name"},
      {"2^31 sums", Old().i32(1).entry("a", 1, kMost).str(64), "sums"},
      {"sums of negative number", Old().i32(1).entry("a", 1, -1).str(64), "sums"},
      {"no sums", Old().i32(1).entry("a", 1, 0).str(4), "found none"},
      {"a negative sum", one(-1), "expected sums of squares"},
      {"a sum that is no number", one(std::numeric_limits<float>::quiet_NaN()), "expected sums of squares"},
      {"an infinite sum", one(std::numeric_limits<float>::infinity()), "expected sums of squares"},
      {"two entries of one name", Old().i32(2).entry("a", 1, 1).f32(1).entry("a", 1, 1).f32(1).str(), "one name"},
      {"a long name of a text", Old().i32(1).entry("a", 1, 1).f32(1).i32(1).i32(kMost).str(9), "data set"},
      {"a name of control characters", Old().i32(1).entry("\x1b[2J\n", 1, 1).f32(-1).str(), ""},
      {"a picture", "\x89PNG\r\n\x1a\n" + std::string(4096, '\x7f'), "no imatrix"},
  };
}

TEST(HostileImatrix, OfTheOlderForm) { expect_refused(old_ones(), read_imatrix_bytes); }

// Of today's form the GGUF file itself is looked at by HostileGguf.
TEST(HostileImatrix, OfTodaysForm) {
  const TempDir scratch;
  const auto written = [&](const gguf::Imatrix& m) {
    gguf::write_imatrix(scratch / "i.gguf", m);
    std::ifstream in(scratch / "i.gguf", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  gguf::Imatrix none, lonely, huge;
  none.datasets = {"a text"};
  lonely.entries["blk.0.attn_q.weight"] = {.squares = {1, 2}, .counts = {1}};
  huge.entries["blk.0.attn_q.weight"] = {.squares = {1, std::numeric_limits<float>::infinity()}, .counts = {1}};
  std::string renamed = written(lonely);
  for (size_t at = 0; (at = renamed.find(".counts", at)) != std::string::npos;) renamed.replace(at, 7, ".cXunts");
  expect_refused({{"no tensors", written(none), "no sums"},
                  {"sums without counts", renamed, "found none"},
                  {"an infinite sum", written(huge), "expected sums of squares"},
                  {"a file that is cut", written(lonely).substr(0, 200), ""}},
                 read_imatrix_bytes);
}

}  // namespace
}  // namespace fewbit::test
