// Which variant of the kernel of skinny.cuh a product of few rows takes. Sixteen warps in all of them, so
// that the order of the sums is one. A ring of five slots leaves room for the blocks of the next product
// beside it; bf16, whose steps are worth half as much work, does better with the whole of the shared memory
// under way.
#include "kernels/skinny.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int64_t kMostBf16Rows = 2;  // cuBLAS is as fast from there on

using Bf16 = SkinnyVariant<SkinnyBf16, 1, kWarps, 10, 1>;
template <class Format, int kColumns>
using Bytes = SkinnyVariant<Format, kColumns, kWarps, 5, 1>;

// Calls f with the variant for so many rows, as a null pointer.
template <class F>
auto with_variant(DType type, int rows, F&& f) {
  if (type == DType::bf16) return f(static_cast<Bf16*>(nullptr));
  if (type == DType::i8)
    return rows <= 8 ? f(static_cast<Bytes<SkinnyI8, 1>*>(nullptr))
                     : f(static_cast<Bytes<SkinnyI8, 2>*>(nullptr));
  FEWBIT_ASSERT(type == DType::f8_e4m3);
  if (rows <= 2) return f(static_cast<Bytes<SkinnyF8<true>, 1>*>(nullptr));
  return rows <= 8 ? f(static_cast<Bytes<SkinnyF8<false>, 1>*>(nullptr))
                   : f(static_cast<Bytes<SkinnyF8<false>, 2>*>(nullptr));
}

}  // namespace

bool skinny_prepares(int64_t rows, int64_t in) { return rows * in <= kPreparedHere; }

int skinny_rows(const CudaState& s, DType type, int64_t rows, int64_t in, const void* w, const void* x) {
  const int64_t row_bytes = in * bytes_of(type);
  if (rows > (type == DType::bf16 ? kMostBf16Rows : SkinnyJob::kRows) || row_bytes % kStepBytes != 0 ||
      row_bytes < kWarps * kStepBytes || row_bytes >= 1 << 20 || !aligned16(static_cast<const char*>(w)) ||
      !aligned16(static_cast<const char*>(x)))
    return 0;
  for (int at_once = static_cast<int>(rows); at_once > 0; --at_once) {
    const size_t shared = with_variant(type, at_once, [&](auto* variant) {
      using V = std::remove_pointer_t<decltype(variant)>;
      return skinny_shared<V>(at_once, static_cast<int>(in));
    });
    if (shared + 1024 <= s.max_shared()) return at_once;  // 1024: what the kernel has besides
  }
  return 0;
}

void skinny_product(CudaState& s, DType type, const SkinnyJob& job, int count) {
  with_variant(type, job.rows, [&](auto* variant) {
    launch_skinny<std::remove_pointer_t<decltype(variant)>>(s, job, count);
  });
}

}  // namespace fewbit::cuda
