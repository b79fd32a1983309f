#include "src/core/text/nearest.h"

#include <gtest/gtest.h>

namespace fewbit::test {
namespace {

TEST(Nearest, CountsEditsAndExchangesAsOne) {
  EXPECT_EQ(edit_distance("", "gptq"), 4u);
  EXPECT_EQ(edit_distance("gptq", "gptq"), 0u);
  EXPECT_EQ(edit_distance("gtpq", "gptq"), 1u);   // an exchange
  EXPECT_EQ(edit_distance("gptqq", "gptq"), 1u);  // one too many
  EXPECT_EQ(edit_distance("gpt", "gptq"), 1u);    // one missing
  EXPECT_EQ(edit_distance("Q4_K", "q4_k"), 0u);   // case
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ca", "abc"), 3u);  // no place is edited twice: an exchange, then c between, would be 2
}

TEST(Nearest, KeepsQuietWhereNothingIsNear) {
  const std::vector<std::string_view> known = {"gptq", "rtn", "awq"};
  EXPECT_EQ(nearest("gtpq", known), "gptq");
  EXPECT_EQ(nearest("quarot", known), "");
  EXPECT_EQ(nearest("x", known), "");
  EXPECT_EQ(unknown_name("method", "quarot", known), "unknown method \"quarot\"; known: gptq rtn awq");
  EXPECT_EQ(unknown_name("method", "rnt", known), "unknown method \"rnt\"; did you mean \"rtn\"? known: gptq rtn awq");
}

}  // namespace
}  // namespace fewbit::test
