// Which variant of the kernel of skinny.cuh a product of few rows takes, and its k splits.
#include "kernels/products/skinny.cuh"

namespace fewbit::cuda::skinny {
namespace {

// The variant that kernels/choice/skinny_shape.h says for these types and so many rows.
template <class Format, DType kW, DType kX, int kRows>
using Shaped = Variant<Format, skinny_shape({kW, kX}, kRows).row_blocks, kSkinnyWarps,
                       skinny_shape({kW, kX}, kRows).stages, 1, skinny_shape({kW, kX}, kRows).sum_buffers>;
using Bf16 = Shaped<Bf16Format, DType::bf16, DType::bf16, 1>;
template <int kRows>
using I8 = Shaped<I8Format, DType::i8, DType::i8, kRows>;
template <F8Input kInput, int kRows>
using F8 = Shaped<F8Format<kInput>, DType::f8_e4m3, kInput == F8Input::unrounded ? DType::f16 : DType::f8_e4m3, kRows>;

// Calls f with a null pointer to the variant:
//   w        x        1-2 rows      3-8 rows      9-16 rows
//   bf16     bf16     Bf16          -             -
//   i8       i8       I8            I8            I8
//   f8_e4m3  f8_e4m3  widened       codes         codes
//   f8_e4m3  f16      unrounded     unrounded     unrounded
template <class F>
auto with_variant(Types types, int rows, F&& f) {
  if (types.w == DType::bf16) return f(static_cast<Bf16*>(nullptr));
  if (types.w == DType::i8) return rows <= 8 ? f(static_cast<I8<8>*>(nullptr)) : f(static_cast<I8<16>*>(nullptr));
  FEWBIT_ASSERT(types.w == DType::f8_e4m3);
  if (types.x == DType::f16)
    return rows <= 8 ? f(static_cast<F8<F8Input::unrounded, 8>*>(nullptr))
                     : f(static_cast<F8<F8Input::unrounded, 16>*>(nullptr));
  if (rows <= 2) return f(static_cast<F8<F8Input::widened, 2>*>(nullptr));
  return rows <= 8 ? f(static_cast<F8<F8Input::codes, 8>*>(nullptr)) : f(static_cast<F8<F8Input::codes, 16>*>(nullptr));
}

int values_of_step(Types types) { return kStepBytes / static_cast<int>(bytes_of(types.w)); }

}  // namespace

bool prepares_x(int64_t rows, int64_t in) { return rows * in <= kMostPreparedValues; }

int k_splits(const CudaState& s, Types types, int64_t rows, int64_t in, const void* w, const void* x) {
  if (!aligned16(static_cast<const char*>(w)) || !aligned16(static_cast<const char*>(x))) return 0;
  return skinny_k_splits(s.traits(), types, rows, in);
}

void launch_products(CudaState& s, Types types, Job job, int count, int splits) {
  FEWBIT_ASSERT(splits == 1 || !(job.quantize || job.norm));
  const int steps = job.in / values_of_step(types);
  job.stride = job.in;
  for (int split = 0; split < splits; ++split) {
    job.in = static_cast<int>(skinny_steps(steps, split, splits)) * values_of_step(types);
    job.loads_sums = split > 0;
    job.stores_sums = split + 1 < splits;
    with_variant(types, job.rows,
                 [&](auto* variant) { launch_variant<std::remove_pointer_t<decltype(variant)>>(s, job, count); });
    job.x = static_cast<const char*>(job.x) + job.in * bytes_of(types.x);
    for (int i = 0; i < count; ++i) job.weights[i].w += job.in * bytes_of(types.w);
  }
}

}  // namespace fewbit::cuda::skinny
