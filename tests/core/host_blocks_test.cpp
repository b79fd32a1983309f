#include "src/core/host_blocks.h"

#include <gtest/gtest.h>

#include <cstring>

#include "src/core/tensor.h"

namespace fewbit {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// What is kept never makes the sum larger than what was in use at once.
TEST(HostBlocks, KeepNoMoreThanWasInUse) {
  drop_kept_blocks();
  void* a = take_host_block(8 * kMiB);
  void* b = take_host_block(6 * kMiB);
  const int64_t most = host_blocks().most_used;
  give_host_block(a, 8 * kMiB);
  give_host_block(b, 6 * kMiB);
  EXPECT_EQ(host_blocks().kept, static_cast<int64_t>(14 * kMiB));
  void* c = take_host_block(10 * kMiB);  // of another size: what is kept makes room
  EXPECT_LE(host_blocks().used + host_blocks().kept, most);
  EXPECT_EQ(host_blocks().most_used, most);
  give_host_block(c, 10 * kMiB);
  drop_kept_blocks();
  EXPECT_EQ(host_blocks().kept, 0);
}

TEST(HostBlocks, ABlockOfTheSameSizeIsTakenAgain) {
  drop_kept_blocks();
  void* a = take_host_block(3 * kMiB);
  std::memset(a, 1, 3 * kMiB);
  give_host_block(a, 3 * kMiB);
  void* b = take_host_block(3 * kMiB);
  EXPECT_EQ(a, b);
  EXPECT_EQ(host_blocks().kept, 0);
  give_host_block(b, 3 * kMiB);
}

TEST(HostBlocks, AreAlignedAndWhole) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, kMiB - 1, kMiB, 4 * kMiB, 5 * kMiB + 17}) {
    void* at = take_host_block(bytes);
    ASSERT_NE(at, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0u) << bytes;
    std::memset(at, 7, bytes);
    give_host_block(at, bytes);
  }
}

// Many of them in turn leave nothing behind but what may be kept.
TEST(HostBlocks, TensorsGiveTheirsBack) {
  drop_kept_blocks();
  const int64_t before = host_blocks().used;
  for (int i = 0; i < 100; ++i) (void)Tensor::host_zeros(DType::f32, {256, 1024 + 64 * i});
  EXPECT_EQ(host_blocks().used, before);
  EXPECT_LE(host_blocks().kept, host_blocks().most_used);
  drop_kept_blocks();
}

}  // namespace
}  // namespace fewbit
