// The CUDA half of Exec: copies in every direction, recordings, the book of memory. Skipped where no GPU answers.
#include <cstring>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/exec/rough_products.h"
#include "kernels/model/add.h"
#include "kernels/products/gemm.h"
#include "kernels/statistics/nll.h"
#include "src/core/rng.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit {
namespace {

using test::first_difference;
using test::random_normal;
using test::relative_error;

Tensor random_bytes(int64_t count, uint64_t seed) {
  const Rng rng(seed, "random_bytes");
  Tensor t = Tensor::host(DType::u8, {count});
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t v = rng.at(static_cast<uint64_t>(i));
    std::memcpy(t.as<uint8_t>() + i, &v, static_cast<size_t>(std::min<int64_t>(8, count - i)));
  }
  return t;
}

TEST(ExecCuda, CopiesBytesInEveryDirection) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  // Nothing, one byte, odd sizes, both sides of the staged path, several staging buffers and a rest.
  for (const int64_t bytes : {0, 1, 4097, 1 << 20, (1 << 20) - 1, 33554432, 70000003}) {
    const Tensor host = random_bytes(bytes, 7);
    const Tensor a = ex.to_device(host), b = ex.alloc(DType::u8, {bytes});
    ex.copy(a, b);
    const Tensor back = ex.to_host(b);
    EXPECT_EQ(first_difference(back, host), "") << bytes << " bytes";
  }
}

TEST(ExecCuda, CopiesFromAndToPinnedMemory) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Tensor host = random_bytes(5000000, 8);
  const Tensor pinned = ex.alloc_pinned(DType::u8, {host.numel()}), back = ex.alloc_pinned(DType::u8, {host.numel()});
  std::memcpy(pinned.view().data, host.view().data, static_cast<size_t>(host.bytes()));
  const Tensor device = ex.alloc(DType::u8, {host.numel()});
  ex.copy(pinned, device);
  ex.copy(device, back);
  EXPECT_EQ(first_difference(back, host), "");
}

TEST(ExecCuda, AnUnpinnedSourceMayChangeAfterTheCopy) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const int64_t bytes : {1000, 80000000}) {
    const Tensor kept = random_bytes(bytes, 9), host = clone_host(kept);
    const Tensor device = ex.to_device(host);
    std::memset(host.view().data, 0, static_cast<size_t>(bytes));
    EXPECT_EQ(first_difference(ex.to_host(device), kept), "") << bytes << " bytes";
  }
}

TEST(ExecCuda, ZeroesInStreamOrder) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Tensor t = ex.alloc_zeros(DType::f32, {1023});
  EXPECT_EQ(first_difference(ex.to_host(t), Tensor::host_zeros(DType::f32, {1023})), "");
}

// Factors are rounded while one lives, and kept behind it.
TEST(ExecCuda, RoughProductsAreRoughOnlyWhereTheyAreAskedFor) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  constexpr int64_t kN = 256;
  const Tensor a = ex.to_device(random_normal(DType::f32, {kN, kN}, 1)),
               b = ex.to_device(random_normal(DType::f32, {kN, kN}, 2));
  const auto product = [&] {
    const Tensor c = ex.alloc(DType::f32, {kN, kN});
    matmul(ex, {.a = mat<float>(a), .b = mat<float>(b), .c = mat<float>(c)});
    return ex.to_host(c);
  };
  const Tensor before = product();
  Tensor rough;
  {
    const RoughProducts scope(ex);
    rough = product();
  }
  EXPECT_EQ(first_difference(product(), before), "");
  EXPECT_GT(relative_error(rough, before), tol::kF32Op);
  EXPECT_LT(relative_error(rough, before), tol::kTf32Product);
}

// A decode step as the engine records it: nothing of the positions is known to the host.
struct Step {
  static constexpr int64_t kHeads = 8, kKvHeads = 2, kDim = 64, kCapacity = 300, kHidden = kHeads * kDim;
  Exec& ex;
  Tensor x, w, q, k, v, out, positions, k_cache, v_cache;

  explicit Step(Exec& e) : ex(e) {
    x = ex.to_device(random_normal(DType::bf16, {1, kHidden}, 1));
    w = ex.to_device(random_normal(DType::bf16, {kHidden, kHidden}, 2, 0.05f));
    q = ex.alloc(DType::bf16, {1, kHidden});
    k = ex.to_device(random_normal(DType::bf16, {1, kKvHeads * kDim}, 3));
    v = ex.to_device(random_normal(DType::bf16, {1, kKvHeads * kDim}, 4));
    out = ex.alloc(DType::bf16, {1, kHidden});
    positions = ex.alloc_zeros(DType::i32, {1});
    k_cache = ex.to_device(random_normal(DType::bf16, {1, kKvHeads, kCapacity, kDim}, 5));
    v_cache = ex.to_device(random_normal(DType::bf16, {1, kKvHeads, kCapacity, kDim}, 6));
  }
  void run() {
    gemm(ex, x, w, {}, q);
    kv_append(ex, k, v, positions, {k_cache, v_cache});
    attention_cached(ex, q, positions, {k_cache, v_cache},
                     {.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.125f}, out);
    add(ex, out, x);
    advance(ex, positions, 37);
  }
};

TEST(ExecCuda, AReplayEqualsTheSameStepsRunEagerly) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  Step eager(ex), replayed(ex);
  for (int i = 0; i < 8; ++i) eager.run();
  replayed.run();  // the memory of the ops has its size when the step is recorded
  const RecordedGraph graph = ex.record([&] { replayed.run(); });
  for (int i = 1; i < 8; ++i) ex.replay(graph);
  EXPECT_EQ(first_difference(ex.to_host(replayed.x), ex.to_host(eager.x)), "");
  EXPECT_EQ(first_difference(ex.to_host(replayed.positions), ex.to_host(eager.positions)), "");
}

TEST(ExecCuda, AReplayOutlivesTheGrowthOfScratchMemory) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  Step eager(ex), replayed(ex);
  for (int i = 0; i < 3; ++i) eager.run();
  replayed.run();
  const RecordedGraph graph = ex.record([&] { replayed.run(); });
  // A larger problem of the same op makes the scratch memory grow after the recording.
  const int64_t batch = 64, heads = 64, dim = 128;
  const Tensor q = ex.alloc_zeros(DType::bf16, {batch, heads * dim}), out = ex.alloc(DType::bf16, {batch, heads * dim});
  const Tensor cache = ex.alloc_zeros(DType::bf16, {batch, heads, 2048, dim});
  const Tensor positions = ex.alloc_zeros(DType::i32, {batch});
  attention_cached(ex, q, positions, {cache, cache}, {.heads = 64, .kv_heads = 64, .head_dim = dim, .scale = 1}, out);
  for (int i = 1; i < 3; ++i) ex.replay(graph);
  EXPECT_EQ(first_difference(ex.to_host(replayed.x), ex.to_host(eager.x)), "");
}

TEST(ExecCuda, CountsThePeakOfDeviceMemory) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const int64_t before = ex.peak_bytes(), mib = 1 << 20;
  {
    const Tensor a = ex.alloc(DType::u8, {100 * mib}), b = ex.alloc(DType::u8, {50 * mib});
    EXPECT_EQ(ex.peak_bytes(), before + 150 * mib);
  }
  const Tensor c = ex.alloc(DType::u8, {120 * mib});
  EXPECT_EQ(ex.peak_bytes(), before + 150 * mib);  // the first two are gone
  EXPECT_GT(ex.total_bytes(), ex.free_bytes());
  EXPECT_GT(ex.free_bytes(), 0);
}

TEST(ExecCuda, OutOfMemoryIsAnErrorWithTheBytesAndDoesNotBreakTheDevice) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  try {
    const Tensor t = ex.alloc(DType::u8, {int64_t{1} << 44});
    FAIL() << "16 TiB were given out";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::memory);
    EXPECT_NE(std::string(e.what()).find("17592186044416"), std::string::npos) << e.what();
  }
  const Tensor host = random_bytes(1000, 3);
  EXPECT_EQ(first_difference(ex.to_host(ex.to_device(host)), host), "");
}

TEST(ExecCuda, RefusesAGpuThatIsNotThere) {
  FEWBIT_NEEDS_GPU();
  try {
    const Exec ex = Exec::cuda(4095);
    FAIL() << "GPU 4095 answered";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
  }
}

TEST(ExecCuda, ATensorMayOutliveItsExec) {
  FEWBIT_NEEDS_GPU();
  Tensor t;
  {
    Exec ex = Exec::cuda(0);
    t = ex.alloc(DType::u8, {1 << 20});
  }
  t.reset();
  Exec ex = Exec::cuda(0);  // the device still works
  const Tensor host = random_bytes(100, 4);
  EXPECT_EQ(first_difference(ex.to_host(ex.to_device(host)), host), "");
}

TEST(ExecCuda, MarksAreOrdered) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Tensor a = ex.alloc(DType::u8, {1 << 26}), b = ex.alloc(DType::u8, {1 << 26});
  const int from = ex.mark();
  ex.copy(a, b);
  const int to = ex.mark();
  EXPECT_GT(ex.elapsed_ms(from, to), 0);
}

}  // namespace
}  // namespace fewbit
