#pragma once
// How the kernel for few rows of x on weights as they lie (kernels/products/skinny.cuh) is cut, and whether it fits.
#include "kernels/choice/gpu_traits.h"
#include "src/core/dtype.h"

namespace fewbit {

// What meets in a product: the weight as it lies, and x in the kernel. bf16 with bf16, i8 with i8, f8_e4m3 with f8_e4m3
// or, unrounded, f16.
struct SkinnyTypes {
  DType w, x;
};

// A variant of the kernel. Sixteen warps in all of them, so that the order of the sums is one. A ring of five slots
// leaves room for the blocks of the next product beside it; bf16, whose steps are worth half as much work, does better
// with the whole of the shared memory in flight; 16 rows of 4,096 values as f16 find room beside four slots.
struct SkinnyShape {
  int columns;      // runs of 8 rows of x
  int depth;        // slots of a warp's ring
  int value_bytes;  // of a weight
  int x_bytes;      // of a value of x in shared memory
  int sum_buffers;  // of the sums of the tiles
  constexpr bool operator==(const SkinnyShape&) const = default;
};
inline constexpr int kSkinnyWarps = 16;
inline constexpr int kSkinnyRows = 16;                          // of x, at most
inline constexpr int kSkinnyBf16Rows = 2;                       // cuBLAS is as fast from there on
inline constexpr int kSkinnyStepBytes = 64;                     // of a weight row: what four lanes take by one load
inline constexpr int kSkinnySlotBytes = 16 * kSkinnyStepBytes;  // of a warp and step
inline constexpr int kSkinnyOuts = 16, kSkinnySumStride = kSkinnyOuts + 4;
// Values of x, all rows together, up to which every block norms and quantizes them for itself: cheaper than a launch
// that all wait for.
inline constexpr int64_t kSkinnyPreparedHere = 16384;

constexpr SkinnyShape skinny_shape(SkinnyTypes types, int64_t rows) {
  const int columns = rows <= 8 ? 1 : 2;
  if (types.w == DType::bf16) return {1, 10, 2, 2, 2};
  if (types.w == DType::i8) return {columns, 5, 1, 1, 2};
  if (types.x == DType::f16) return rows <= 8 ? SkinnyShape{1, 5, 1, 2, 2} : SkinnyShape{2, 4, 1, 2, 1};
  return rows <= 2 ? SkinnyShape{1, 5, 1, 2, 2} : SkinnyShape{columns, 5, 1, 1, 2};
}

// Bytes from row to row of x in shared memory. The eight lanes of a quarter of a load have two rows and four places 16
// (where x is wider than the weight: 32) bytes apart: neighbouring rows fill each other's gaps in the banks.
constexpr int skinny_pitch(int64_t in, int x_bytes, int value_bytes) {
  const int bytes = static_cast<int>(in) * x_bytes;
  if (x_bytes > value_bytes) return bytes + 16;
  return bytes % 128 == 64 ? bytes : bytes + 64;
}
// Shared memory of a block.
constexpr int64_t skinny_shared_bytes(const SkinnyShape& s, int64_t rows, int64_t in) {
  return int64_t{kSkinnyWarps} * s.depth * kSkinnySlotBytes +
         rows * (skinny_pitch(in, s.x_bytes, s.value_bytes) +
                 int64_t{4} * s.sum_buffers * kSkinnyWarps * kSkinnySumStride);
}
// Steps of the k of one launch of several; the first ones have one more where they do not come out even.
constexpr int64_t skinny_steps(int64_t steps, int launch, int launches) {
  return steps / launches + (launch < steps % launches);
}

// Launches that so many rows of `in` values take: one, or several that have a part of k each where x finds no room in
// shared memory; 0 where such a product is not for this kernel. All data aligned to 16 bytes.
int skinny_launches(const GpuTraits&, SkinnyTypes, int64_t rows, int64_t in);

}  // namespace fewbit
