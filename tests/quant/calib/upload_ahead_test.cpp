// Weights that were brought ahead are those that an upload brings, taken in the order foreseen or in another.
#include "src/calib/upload_ahead.h"

#include <array>
#include <atomic>

#include "src/run/upload_as.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

std::vector<Tensor> some_weights(int count) {
  std::vector<Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(random_normal(i % 2 ? DType::bf16 : DType::f32, {8 + i, 32}, i));
  return all;
}

void expect_taken(Exec& ex, UploadAhead& ahead, const Tensor& w, DType dtype) {
  Tensor taken = ahead.take(w, dtype);
  if (taken.empty()) taken = upload_as(ex, w, dtype);  // it was not begun, or given up
  EXPECT_EQ(first_difference(ex.to_host(taken), ex.to_host(upload_as(ex, w, dtype))), "");
}

FEWBIT_DEVICE_TEST(UploadAhead, BringsWhatWasForeseen) {
  const std::vector<Tensor> weights = some_weights(20);
  UploadAhead ahead(ex, 28 * 32 * 4);
  for (const Tensor& w : weights)
    for (int uses = 0; uses < 2; ++uses) ahead.foresee(w);
  for (const Tensor& w : weights) {
    expect_taken(ex, ahead, w, DType::f32);
    expect_taken(ex, ahead, w, DType::bf16);
  }
  EXPECT_TRUE(ahead.take(weights[0], DType::f32).empty());  // as often as foreseen, and no more
}

FEWBIT_DEVICE_TEST(UploadAhead, GivesUpWhatIsPassedOver) {
  const std::vector<Tensor> weights = some_weights(30);
  UploadAhead ahead(ex, 40 * 32 * 4);
  for (const Tensor& w : weights) ahead.foresee(w);
  for (size_t i = 4; i < weights.size(); i += 5) expect_taken(ex, ahead, weights[i], DType::f32);
  expect_taken(ex, ahead, weights[0], DType::f32);  // long gone
  ahead.foresee(weights[1]);
  expect_taken(ex, ahead, weights[1], DType::f32);
}

FEWBIT_DEVICE_TEST(UploadAhead, BringsManyIntoMemoryOfTheirOwn) {
  std::vector<Tensor> weights;
  for (uint64_t i = 0; i < 12; ++i) weights.push_back(random_normal(DType::bf16, {24, 32}, i));
  std::array<std::atomic<int>, 11> read{};
  UploadAhead ahead(ex, 24 * 32 * 2);
  ahead.foresee(weights[0]);
  const std::vector<ConstTensorView> whole(weights.begin() + 1, weights.end());
  ahead.foresee_whole(whole, [&read](size_t i) { ++read.at(i); });
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, size_t{5}, size_t{11}})
    expect_taken(ex, ahead, weights[i], i == 5 ? DType::f32 : DType::bf16);
  EXPECT_TRUE(ahead.take(weights[3], DType::bf16).empty()) << "given up";
  for (const std::atomic<int>& times : read) EXPECT_LE(times, 1);
}

FEWBIT_DEVICE_TEST(UploadAhead, DoesNothingWithoutRoom) {
  const std::vector<Tensor> weights = some_weights(2);
  UploadAhead none(ex, 0), narrow(ex, 256);
  none.foresee(weights[0]);
  narrow.foresee(weights[0]);
  EXPECT_TRUE(none.take(weights[0], DType::f32).empty());
  EXPECT_TRUE(narrow.take(weights[0], DType::f32).empty());
}

}  // namespace
}  // namespace fewbit::test
