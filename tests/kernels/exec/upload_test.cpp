#include "kernels/exec/upload.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

template <class T>
void expect_uploaded(Exec& ex, DType dtype, const std::vector<T>& values) {
  const Tensor t = upload(ex, values);
  EXPECT_EQ(t.dtype(), dtype);
  EXPECT_EQ(t.device(), ex.device());
  ASSERT_EQ(t.shape(), Shape({static_cast<int64_t>(values.size())}));
  const Tensor back = ex.to_host(t);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(back.as<T>()[i], values[i]) << i;
}

FEWBIT_DEVICE_TEST(Upload, KeepsValuesAndNamesTheirType) {
  expect_uploaded<float>(ex, DType::f32, {1.5f, -2.f, 3.f});
  expect_uploaded<double>(ex, DType::f64, {0.1, 0.2});
  expect_uploaded<int32_t>(ex, DType::i32, {7, -7});
  expect_uploaded<int64_t>(ex, DType::i64, {int64_t{1} << 40});
  expect_uploaded<uint8_t>(ex, DType::u8, {0, 255});
  EXPECT_TRUE(upload(ex, std::vector<float>{}).empty());
}

}  // namespace
}  // namespace fewbit::test
