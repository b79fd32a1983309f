#include "kernels/model/embed.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(Embed, PicksAndScalesRows) {
  const std::vector<int32_t> ids = {4, 0, 9, 9, 1};
  for (const int64_t hidden : kSizes)
    for (const DType from : {DType::f32, DType::f16, DType::bf16})
      for (const DType to : kComputeTypes) {
        const Tensor table = random_normal(from, {10, hidden}, 1);
        const Tensor x = poisoned(ex, to, {5, hidden});
        embed(ex, ex.to_device(host_i32(ids)), ex.to_device(table), 1.5f, x);
        const std::vector<double> t = doubles(table);
        std::vector<double> expected;
        for (const int32_t id : ids)
          for (int64_t c = 0; c < hidden; ++c) expected.push_back(1.5 * t[static_cast<size_t>(id * hidden + c)]);
        EXPECT_LE(error_of(ex, x, expected), op_tolerance(to)) << name_of(from) << " " << name_of(to) << " " << hidden;
      }
}

}  // namespace
}  // namespace fewbit::test
