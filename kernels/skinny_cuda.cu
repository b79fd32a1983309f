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
// 16 rows of 4,096 values as f16 find room beside it.
using F8Unrounded16 = SkinnyVariant<SkinnyF8<F8Input::unrounded>, 2, kWarps, 4, 1, 1>;

// Calls f with the variant for so many rows, as a null pointer.
template <class F>
auto with_variant(SkinnyTypes types, int rows, F&& f) {
  if (types.w == DType::bf16) return f(static_cast<Bf16*>(nullptr));
  if (types.w == DType::i8)
    return rows <= 8 ? f(static_cast<Bytes<SkinnyI8, 1>*>(nullptr))
                     : f(static_cast<Bytes<SkinnyI8, 2>*>(nullptr));
  FEWBIT_ASSERT(types.w == DType::f8_e4m3);
  if (types.x == DType::f16)
    return rows <= 8 ? f(static_cast<Bytes<SkinnyF8<F8Input::unrounded>, 1>*>(nullptr))
                     : f(static_cast<F8Unrounded16*>(nullptr));
  if (rows <= 2) return f(static_cast<Bytes<SkinnyF8<F8Input::widened>, 1>*>(nullptr));
  return rows <= 8 ? f(static_cast<Bytes<SkinnyF8<F8Input::codes>, 1>*>(nullptr))
                   : f(static_cast<Bytes<SkinnyF8<F8Input::codes>, 2>*>(nullptr));
}

}  // namespace

bool skinny_prepares(int64_t rows, int64_t in) { return rows * in <= kPreparedHere; }

int skinny_rows(const CudaState& s, SkinnyTypes types, int64_t rows, int64_t in, const void* w, const void* x) {
  const int64_t row_bytes = in * bytes_of(types.w);
  if (rows > (types.w == DType::bf16 ? kMostBf16Rows : SkinnyJob::kRows) || row_bytes % kStepBytes != 0 ||
      row_bytes < kWarps * kStepBytes || row_bytes >= 1 << 20 || !aligned16(static_cast<const char*>(w)) ||
      !aligned16(static_cast<const char*>(x)))
    return 0;
  for (int at_once = static_cast<int>(rows); at_once > 0; --at_once) {
    const size_t shared = with_variant(types, at_once, [&](auto* variant) {
      using V = std::remove_pointer_t<decltype(variant)>;
      return skinny_shared<V>(at_once, static_cast<int>(in));
    });
    if (shared + 1024 <= s.max_shared()) return at_once;  // 1024: what the kernel has besides
  }
  return 0;
}

void skinny_product(CudaState& s, SkinnyTypes types, const SkinnyJob& job, int count) {
  with_variant(types, job.rows, [&](auto* variant) {
    launch_skinny<std::remove_pointer_t<decltype(variant)>>(s, job, count);
  });
}

}  // namespace fewbit::cuda
