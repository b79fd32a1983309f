#include "kernels/model/copy_columns.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(CopyColumns, MovesThePartAndLeavesTheRest) {
  struct Case {
    int64_t from, begin, to, at, cols;
  };
  for (const DType dtype : kComputeTypes)
    for (const Case c : {Case{24, 8, 8, 0, 8}, Case{24, 0, 40, 16, 24}, Case{7, 3, 5, 1, 4},
                         Case{4096, 1024, 512, 0, 512}, Case{16, 4, 16, 8, 8}}) {
      const Tensor from = random_normal(dtype, {3, c.from}, 1), to = random_normal(dtype, {3, c.to}, 2);
      const Tensor found = ex.to_device(to);
      copy_columns(ex, ex.to_device(from), c.begin, found, c.at, c.cols);
      const std::vector<double> source = doubles(from);
      std::vector<double> expected = doubles(to);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t j = 0; j < c.cols; ++j)
          expected[static_cast<size_t>(r * c.to + c.at + j)] = source[static_cast<size_t>(r * c.from + c.begin + j)];
      EXPECT_EQ(error_of(ex, found, expected), tol::kExact) << name_of(dtype) << " " << c.from << " " << c.begin;
    }
}

FEWBIT_DEVICE_TEST(CopyColumns, TakesTheSamePartOfEveryGroup) {
  for (const DType dtype : kComputeTypes)
    for (const int64_t part : {3, 8}) {  // three groups of (two parts, one part); the last to columns 2, 3, … of `to`
      const Tensor from = random_normal(dtype, {5, 9 * part}, 1), to = random_normal(dtype, {5, 4 * part}, 2);
      const Tensor found = ex.to_device(to);
      copy_columns(ex, ex.to_device(from), 2 * part, found, part, part,
                   {.count = 3, .from_step = 3 * part, .to_step = part});
      const std::vector<double> source = doubles(from);
      std::vector<double> expected = doubles(to);
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t g = 0; g < 3; ++g)
          for (int64_t c = 0; c < part; ++c)
            expected[static_cast<size_t>((r * 4 + 1 + g) * part + c)] =
                source[static_cast<size_t>((r * 9 + g * 3 + 2) * part + c)];
      EXPECT_EQ(error_of(ex, found, expected), tol::kExact) << name_of(dtype) << " " << part;
    }
}

}  // namespace
}  // namespace fewbit::test
