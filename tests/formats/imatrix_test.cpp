// imatrix files: both forms, and what is no such file.
#include "formats/gguf/imatrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "src/core/error.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

gguf::Imatrix some() {
  gguf::Imatrix m;
  m.entries["blk.0.attn_q.weight"] = {.squares = {1, 2, 3, 4}, .counts = {10}};
  m.entries["blk.0.ffn_up_exps.weight"] = {.squares = {1, 2, 3, 4, 5, 6}, .counts = {3, 0, 5}};
  m.datasets = {"a text"};
  m.chunks = 7;
  m.chunk_tokens = 512;
  return m;
}

TEST(Imatrix, ReadsWhatItWrites) {
  const TempDir dir;
  gguf::write_imatrix(dir / "i.gguf", some());
  const gguf::Imatrix m = gguf::read_imatrix(dir / "i.gguf");
  ASSERT_EQ(m.entries.size(), 2U);
  EXPECT_EQ(m.entries.at("blk.0.attn_q.weight").squares, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(m.entries.at("blk.0.ffn_up_exps.weight").squares, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(m.entries.at("blk.0.ffn_up_exps.weight").counts, (std::vector<float>{3, 0, 5}));
  EXPECT_EQ(m.datasets, (std::vector<std::string>{"a text"}));
  EXPECT_EQ(m.chunks, 7);
  EXPECT_EQ(m.chunk_tokens, 512);
}

// By hand: the form of before 2025.
std::string old_form() {
  std::string s;
  const auto put = [&](auto v) { s.append(reinterpret_cast<const char*>(&v), sizeof v); };
  const std::string name = "blk.0.attn_q.weight";
  put(int32_t{1});
  put(static_cast<int32_t>(name.size()));
  s += name;
  put(int32_t{4});  // calls
  put(int32_t{2});
  put(8.f);
  put(12.f);
  put(int32_t{4});
  put(int32_t{5});
  return s + "texts";
}

gguf::Imatrix parsed(const std::string& s) {
  return gguf::parse_imatrix({reinterpret_cast<const uint8_t*>(s.data()), s.size()}, "i.dat");
}

TEST(Imatrix, ReadsTheOlderForm) {
  const std::string file = old_form();
  for (const std::string& s : {file, file.substr(0, file.size() - 13)}) {  // the text's name may be missing
    const gguf::Imatrix m = parsed(s);
    ASSERT_EQ(m.entries.size(), 1U);
    EXPECT_EQ(m.entries.at("blk.0.attn_q.weight").squares, (std::vector<float>{8, 12}));
    EXPECT_EQ(m.entries.at("blk.0.attn_q.weight").counts, (std::vector<float>{4}));
  }
  EXPECT_EQ(parsed(file).datasets, (std::vector<std::string>{"texts"}));
}

std::string refusal(const std::function<void(gguf::Imatrix&)>& spoil) {
  const TempDir dir;
  gguf::Imatrix m = some();
  spoil(m);
  gguf::write_imatrix(dir / "i.gguf", m);
  try {
    gguf::read_imatrix(dir / "i.gguf");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::checkpoint);
    return e.what();
  }
  return "";
}

TEST(Imatrix, RefusesWhatIsNoSum) {
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_NE(refusal([](auto& m) { m.entries.clear(); }).find("no imatrix"), std::string::npos);
  const std::string negative = refusal([](auto& m) { m.entries.begin()->second.squares[1] = -1; });
  EXPECT_NE(negative.find("'blk.0.attn_q.weight': expected sums of squares"), std::string::npos) << negative;
  EXPECT_NE(refusal([](auto& m) { m.entries.begin()->second.counts[0] = std::nanf(""); }).find("found nan"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
