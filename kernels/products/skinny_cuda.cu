// Which variant of the kernel of skinny.cuh a product of few rows takes. Sixteen warps in all of them, so
// that the order of the sums is one. A ring of five slots leaves room for the blocks of the next product
// beside it; bf16, whose steps are worth half as much work, does better with the whole of the shared memory
// under way.
#include "kernels/products/skinny.cuh"

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
    return rows <= 8 ? f(static_cast<Bytes<SkinnyI8, 1>*>(nullptr)) : f(static_cast<Bytes<SkinnyI8, 2>*>(nullptr));
  FEWBIT_ASSERT(types.w == DType::f8_e4m3);
  if (types.x == DType::f16)
    return rows <= 8 ? f(static_cast<Bytes<SkinnyF8<F8Input::unrounded>, 1>*>(nullptr))
                     : f(static_cast<F8Unrounded16*>(nullptr));
  if (rows <= 2) return f(static_cast<Bytes<SkinnyF8<F8Input::widened>, 1>*>(nullptr));
  return rows <= 8 ? f(static_cast<Bytes<SkinnyF8<F8Input::codes>, 1>*>(nullptr))
                   : f(static_cast<Bytes<SkinnyF8<F8Input::codes>, 2>*>(nullptr));
}

int values_of_step(SkinnyTypes types) { return kStepBytes / static_cast<int>(bytes_of(types.w)); }
// The first launches have one more where they do not come out even.
int steps_of_launch(int64_t steps, int launch, int launches) {
  return static_cast<int>(steps / launches + (launch < steps % launches));
}

}  // namespace

bool skinny_prepares(int64_t rows, int64_t in) { return rows * in <= kPreparedHere; }

int skinny_launches(const CudaState& s, SkinnyTypes types, int64_t rows, int64_t in, const void* w, const void* x) {
  const int64_t row_bytes = in * bytes_of(types.w), steps = row_bytes / kStepBytes;
  if (rows > (types.w == DType::bf16 ? kMostBf16Rows : SkinnyJob::kRows) || row_bytes % kStepBytes != 0 ||
      steps < kWarps || row_bytes >= 1 << 20 || !aligned16(static_cast<const char*>(w)) ||
      !aligned16(static_cast<const char*>(x)))
    return 0;
  const int64_t most = types.w == DType::bf16 ? 1 : steps / kWarps;  // cuBLAS has what is left of bf16
  for (int launches = 1; launches <= most; ++launches) {
    const size_t shared = with_variant(types, static_cast<int>(rows), [&](auto* variant) {
      using V = std::remove_pointer_t<decltype(variant)>;
      return skinny_shared<V>(static_cast<int>(rows), steps_of_launch(steps, 0, launches) * values_of_step(types));
    });
    if (shared + 1024 <= s.max_shared()) return launches;  // 1024: what the kernel has besides
  }
  return 0;
}

void skinny_product(CudaState& s, SkinnyTypes types, SkinnyJob job, int count, int launches) {
  FEWBIT_ASSERT(launches == 1 || !(job.quantize || job.norm));
  const int steps = job.in / values_of_step(types);
  job.stride = job.in;
  for (int launch = 0; launch < launches; ++launch) {
    job.in = steps_of_launch(steps, launch, launches) * values_of_step(types);
    job.resumes = launch > 0;
    job.pauses = launch + 1 < launches;
    with_variant(types, job.rows,
                 [&](auto* variant) { launch_skinny<std::remove_pointer_t<decltype(variant)>>(s, job, count); });
    job.x = static_cast<const char*>(job.x) + job.in * bytes_of(types.x);
    for (int i = 0; i < count; ++i) job.weights[i].w += job.in * bytes_of(types.w);
  }
}

}  // namespace fewbit::cuda
