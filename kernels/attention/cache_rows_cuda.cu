// New rows to their positions in a cache: a block has a row, which it moves in words of 16, 4 or 2 bytes.
#include "kernels/attention/cache_rows.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128;

// Word: what a thread moves at once; `words` of them are a row.
template <class Word>
__global__ void cache_rows_kernel(const Word* x, const int32_t* positions, Word* cache, int64_t words, int64_t len,
                                  int64_t capacity) {
  allow_successor();
  await_predecessor();
  const int64_t t = blockIdx.x, to = t / len * capacity + positions[t];
  for (int64_t i = threadIdx.x; i < words; i += kThreads) cache[to * words + i] = x[t * words + i];
}

}  // namespace

void cache_rows(Exec& ex, ConstTensorView x, ConstTensorView positions, TensorView cache) {
  if (x.numel() == 0) return;
  const int64_t bytes = x.cols() * bytes_of(x.dtype), len = x.rows() / cache.shape[0];
  const auto aligned = [&](int64_t n) {
    return bytes % n == 0 && reinterpret_cast<uintptr_t>(x.data) % n == 0 &&
           reinterpret_cast<uintptr_t>(cache.data) % n == 0;
  };
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    launch_overlapping(ex.cuda_state(), cache_rows_kernel<Word>, dim3(static_cast<unsigned>(x.rows())), dim3(kThreads),
                       0, static_cast<const Word*>(x.data), positions.as<int32_t>(), static_cast<Word*>(cache.data),
                       bytes / static_cast<int64_t>(sizeof(Word)), len, cache.shape[1]);
  };
  if (aligned(16)) return launch(uint4{});
  if (aligned(4)) return launch(uint32_t{});
  if (aligned(2)) return launch(uint16_t{});
  launch(uint8_t{});
}

}  // namespace fewbit::cuda
