#pragma once
// How the kernel for few rows of x on weights as they lie (kernels/products/skinny.cuh) is cut, and whether it fits.
#include "kernels/exec/gpu_traits.h"
#include "src/core/dtype.h"
#include "src/core/host_device.h"

namespace fewbit {

// What meets in a product: the weight as it lies, and x in the kernel. bf16 with bf16, i8 with i8, f8_e4m3 with f8_e4m3
// or, unrounded, f16.
struct SkinnyTypes {
  DType w, x;
};

// A variant of the kernel. Sixteen warps in all of them, so that the order of the sums is one. A ring of five stages
// leaves room for the blocks of the next product beside it; bf16, whose steps are worth half as much work, does better
// with the whole of the shared memory in flight; 16 rows of 4,096 values as f16 find room beside four stages and one
// buffer of sums.
struct SkinnyShape {
  int row_blocks;   // of 8 rows of x
  int stages;       // of a warp's ring, all but one under way
  int value_bytes;  // of a weight
  int x_bytes;      // of a value of x in shared memory
  int sum_buffers;  // of the sums of the tiles
};
inline constexpr int kSkinnyWarps = 16;
inline constexpr int kSkinnyRows = 16;       // of x, at most
inline constexpr int kSkinnyBf16Rows = 2;    // cuBLAS is as fast from there on
inline constexpr int kSkinnyStepBytes = 64;  // of a weight row: what four lanes take by one load
inline constexpr int kSkinnyStageBytes =
    16 * kSkinnyStepBytes;  // of a warp's ring: one step of the 16 outputs of a tile
// Outputs of a tile; four more from row to row of sums, so that rows begin in different banks.
inline constexpr int kSkinnyOuts = 16, kSkinnySumStride = kSkinnyOuts + 4;

constexpr SkinnyShape skinny_shape(SkinnyTypes types, int64_t rows) {
  const int row_blocks = rows <= 8 ? 1 : 2;
  if (types.w == DType::bf16) return {1, 10, 2, 2, 2};
  if (types.w == DType::i8) return {row_blocks, 5, 1, 1, 2};
  if (types.x == DType::f16) return rows <= 8 ? SkinnyShape{1, 5, 1, 2, 2} : SkinnyShape{2, 4, 1, 2, 1};
  return rows <= 2 ? SkinnyShape{1, 5, 1, 2, 2} : SkinnyShape{row_blocks, 5, 1, 1, 2};
}

// Bytes from row to row of x in shared memory. The eight lanes of a quarter of a load read two rows at four places, 16
// bytes apart (32 where x is wider than the weight): with this pitch neighbouring rows use different banks.
FEWBIT_HD constexpr int skinny_pitch(int in, int x_bytes, int value_bytes) {
  const int bytes = in * x_bytes;
  if (x_bytes > value_bytes) return bytes + 16;
  return bytes % 128 == 64 ? bytes : bytes + 64;
}
// Shared memory of a block.
constexpr int64_t skinny_shared_bytes(const SkinnyShape& s, int64_t rows, int in) {
  return int64_t{kSkinnyWarps} * s.stages * kSkinnyStageBytes +
         rows * (skinny_pitch(in, s.x_bytes, s.value_bytes) +
                 int64_t{4} * s.sum_buffers * kSkinnyWarps * kSkinnySumStride);
}
// Steps of k in one of several splits; the first splits have one more where the steps do not come out even.
constexpr int64_t skinny_steps(int64_t steps, int split, int splits) {
  return steps / splits + (split < steps % splits);
}

// Into how many splits along k, a launch each, a product is cut so that its rows of x find room in shared memory; 0
// where it is not for this kernel. All data aligned to 16 bytes.
int skinny_k_splits(const GpuTraits&, SkinnyTypes, int64_t rows, int64_t in);

}  // namespace fewbit
