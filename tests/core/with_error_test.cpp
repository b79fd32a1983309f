#include "src/core/text/with_error.h"

#include <gtest/gtest.h>

namespace fewbit::test {
namespace {

TEST(WithError, NoErrorIsNotPrintedAsZero) {
  EXPECT_EQ(with_error(36.21684, 1.43786, 4), "36.2168 ± 1.4379");
  EXPECT_EQ(with_error(36.21684, 0, 2), "36.22 ± 0.00");
  EXPECT_EQ(with_error(36.21684, kNoError, 4), "36.2168");
}

}  // namespace
}  // namespace fewbit::test
