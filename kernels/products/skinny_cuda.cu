// Which variant of the kernel of skinny.cuh a product of few rows takes, and its k splits.
#include "kernels/products/skinny.cuh"

namespace fewbit::cuda::skinny {
namespace {

constexpr int kWarps = 16;              // in all variants, so that all add in one order
constexpr int64_t kMostBf16Rows = 2;    // with more, cuBLAS is as fast
constexpr size_t kStaticShared = 1024;  // bytes of shared memory that the kernel has besides x, rings and sums, at most

// A bf16 step is worth half the work of a step of bytes: the whole of the shared memory has to be under way.
using Bf16 = Variant<Bf16Format, 1, kWarps, 10, 1>;
// Five stages leave room for the blocks of the next product beside this one.
template <class Format, int kRowBlocks>
using Bytes = Variant<Format, kRowBlocks, kWarps, 5, 1>;
// Four stages and one buffer of sums: 16 rows of 4,096 values as f16 find room beside them.
using F8Unrounded16 = Variant<F8Format<F8Input::unrounded>, 2, kWarps, 4, 1, 1>;

// Calls f with a null pointer to the variant:
//   w        x        1-2 rows                3-8 rows                9-16 rows
//   bf16     bf16     Bf16                    -                       -
//   i8       i8       Bytes<I8, 1>            Bytes<I8, 1>            Bytes<I8, 2>
//   f8_e4m3  f8_e4m3  Bytes<widened, 1>       Bytes<codes, 1>         Bytes<codes, 2>
//   f8_e4m3  f16      Bytes<unrounded, 1>     Bytes<unrounded, 1>     F8Unrounded16
template <class F>
auto with_variant(Types types, int rows, F&& f) {
  if (types.w == DType::bf16) return f(static_cast<Bf16*>(nullptr));
  if (types.w == DType::i8)
    return rows <= 8 ? f(static_cast<Bytes<I8Format, 1>*>(nullptr)) : f(static_cast<Bytes<I8Format, 2>*>(nullptr));
  FEWBIT_ASSERT(types.w == DType::f8_e4m3);
  if (types.x == DType::f16)
    return rows <= 8 ? f(static_cast<Bytes<F8Format<F8Input::unrounded>, 1>*>(nullptr))
                     : f(static_cast<F8Unrounded16*>(nullptr));
  if (rows <= 2) return f(static_cast<Bytes<F8Format<F8Input::widened>, 1>*>(nullptr));
  return rows <= 8 ? f(static_cast<Bytes<F8Format<F8Input::codes>, 1>*>(nullptr))
                   : f(static_cast<Bytes<F8Format<F8Input::codes>, 2>*>(nullptr));
}

int values_of_step(Types types) { return kStepBytes / static_cast<int>(bytes_of(types.w)); }
// Of k, in one of `splits`: the first ones have one more where the steps do not come out even.
int steps_of_split(int64_t steps, int split, int splits) {
  return static_cast<int>(steps / splits + (split < steps % splits));
}

}  // namespace

bool prepares_x(int64_t rows, int64_t in) { return rows * in <= kMostPreparedValues; }

int k_splits(const CudaState& s, Types types, int64_t rows, int64_t in, const void* w, const void* x) {
  const int64_t row_bytes = in * bytes_of(types.w), steps = row_bytes / kStepBytes;
  if (rows > (types.w == DType::bf16 ? kMostBf16Rows : Job::kRows) || row_bytes % kStepBytes != 0 || steps < kWarps ||
      row_bytes >= 1 << 20 || !aligned16(static_cast<const char*>(w)) || !aligned16(static_cast<const char*>(x)))
    return 0;
  const int64_t most = types.w == DType::bf16 ? 1 : steps / kWarps;  // bf16 that does not fit goes to cuBLAS
  for (int splits = 1; splits <= most; ++splits) {
    const size_t shared = with_variant(types, static_cast<int>(rows), [&](auto* variant) {
      using V = std::remove_pointer_t<decltype(variant)>;
      return shared_bytes<V>(static_cast<int>(rows), steps_of_split(steps, 0, splits) * values_of_step(types));
    });
    if (shared + kStaticShared <= s.max_shared()) return splits;
  }
  return 0;
}

void launch_products(CudaState& s, Types types, Job job, int count, int splits) {
  FEWBIT_ASSERT(splits == 1 || !(job.quantize || job.norm));
  const int steps = job.in / values_of_step(types);
  job.stride = job.in;
  for (int split = 0; split < splits; ++split) {
    job.in = steps_of_split(steps, split, splits) * values_of_step(types);
    job.loads_sums = split > 0;
    job.stores_sums = split + 1 < splits;
    with_variant(types, job.rows,
                 [&](auto* variant) { launch_variant<std::remove_pointer_t<decltype(variant)>>(s, job, count); });
    job.x = static_cast<const char*>(job.x) + job.in * bytes_of(types.x);
    for (int i = 0; i < count; ++i) job.weights[i].w += job.in * bytes_of(types.w);
  }
}

}  // namespace fewbit::cuda::skinny
