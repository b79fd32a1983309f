#pragma once
// The job of the kernel for few rows of x (kernels/products/skinny.cuh), and the way to it for the ops that launch it
// (kernels/products/gemm.h, kernels/products/bytes/byte_gemms.h).
#include <cuda_bf16.h>

#include "kernels/choice/skinny_shape.h"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/normed_gemms.h"

namespace fewbit::cuda::skinny {

// One of the weights of a launch, and what becomes of its product.
struct Weight {
  const uint8_t* w;           // [out, in] row-major, at a multiple of 16 bytes
  const float* scales;        // [out]; null for bf16
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out] f32 or bf16
  void* sums;  // [rows, out] f32, int32 for int8: what one k split hands to the next; null with one split
  bool add;    // y += the product
  int out;
  int end_tile;  // one past its last tile of 16 outputs, counted over all weights of the job; set by the launch
};
struct Job {
  static constexpr int kRows = 16, kWeights = 3;  // at most
  Weight weights[kWeights];                       // of one type and one `in`
  const void* x;                                  // [rows, in]: bf16, or codes of the type that goes with the weights
  const float* x_scales;                          // [rows], where x holds codes
  int rows, in;
  // The next four are set by the launch.
  int stride;                    // values from row to row of x and of the weights; more than `in` in a k split
  bool loads_sums, stores_sums;  // begins with the sums of the split before; leaves its own for the split after
  int tiles;                     // over all weights
  bool y_f32;                    // else y is bf16
  bool quantize;                 // x is bf16 and becomes codes in the kernel
  const __nv_bfloat16* norm;     // [in]; not null: x is bf16, and rms_norm with this weight comes first, in the kernel
  float norm_eps, norm_offset;   // of that norm (kernels/model/norm.h)
  bool settled;                  // no work in flight writes the weights: they may be read before the predecessor ends
  float fixed;                   // with `quantize`: the scale of all rows; 0: one of its own for each
};

// The types of a product: of the weight in memory, and of x in the kernel.
//   w        x
//   bf16     bf16
//   i8       i8
//   f8_e4m3  f8_e4m3
//   f8_e4m3  f16: unrounded, under a power of two for each row (f16_row_scale() of kernels/grids/row_grid.h)
using Types = SkinnyTypes;
// Into how many splits along k (one launch each) a product has to be cut so that `rows` rows of x, of `in` values, find
// room in shared memory beside the kernel's ring; 0 where the kernel does not take such weights at `w`, or such x.
int k_splits(const CudaState& s, Types types, int64_t rows, int64_t in, const void* w, const void* x);
// Whether the kernel norms and quantizes x of this size by itself; one split is enough then.
bool prepares_x(int64_t rows, int64_t in);
// Launches the product of the job's first `count` weights, `splits` as k_splits() said for each of them. The job is
// that of the whole product; with several splits its x holds codes and its weights have room for sums.
void launch_products(CudaState& s, Types types, Job job, int count, int splits);

inline void set_norm(Job& job, const RowNorm* norm) {
  if (!norm) return;
  FEWBIT_ASSERT(norm->weight.dtype == DType::bf16 && norm->weight.numel() == job.in);
  job.norm = norm->weight.as<__nv_bfloat16>();
  job.norm_eps = norm->eps;
  job.norm_offset = norm->offset;
}
// The products of kernels/products/gemm.h and kernels/products/bytes/byte_gemms.h by this kernel; false, and nothing is
// done, where it does not take them or another one is quicker. `settled` as in Job; `norm` may be null.
bool try_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, std::span<const GemmProduct> products,
               bool settled);
bool try_byte_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
                    std::span<const ByteProduct> products, bool settled);

}  // namespace fewbit::cuda::skinny
