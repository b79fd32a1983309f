#include "kernels/exec/read_all.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// A byte that was skipped or read twice changes the sum.
FEWBIT_DEVICE_TEST(ReadAll, EveryWordIsReadOnce) {
  for (const int64_t quads : {int64_t{1}, int64_t{3}, int64_t{511}, int64_t{70000}, int64_t{3} << 20}) {
    Tensor data = Tensor::host(DType::i32, {4 * quads});
    uint32_t expected = 0, state = 1;
    for (int64_t i = 0; i < data.numel(); ++i) {
      state = state * 1664525u + 1013904223u;
      data.as<uint32_t>()[i] = state;
      expected ^= state;
    }
    const Tensor out = ex.alloc(DType::i32, {1});
    read_all(ex, ex.to_device(data), out);
    EXPECT_EQ(ex.to_host(out).as<uint32_t>()[0], expected) << quads;
  }
}

}  // namespace
}  // namespace fewbit::test
