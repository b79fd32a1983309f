#pragma once
// Products of few rows with weights as they lie: the job, and the way in for the ops that use it
// (kernels/products/gemm.h, kernels/byte_gemm.h). kernels/products/skinny.cuh has the kernel.
#include <cuda_bf16.h>

#include "kernels/exec/exec_cuda.h"
#include "kernels/products/normed_gemms.h"

namespace fewbit::cuda {

struct SkinnyWeight {
  const uint8_t* w;           // [out, in]
  const float* scales;        // [out]; null for bf16
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out]
  void* sums;                 // [rows, out] f32, of int8 int32: what one launch leaves the next where k is cut
  bool add;                   // y += the product
  int out;
  int end_tile;  // one past its last run of 16 outputs, counted over all weights; filled in by the launch
};
struct SkinnyJob {
  static constexpr int kRows = 16, kWeights = 3;
  SkinnyWeight weights[kWeights];  // of one type and `in`
  const void* x;                   // [rows, in]: bf16, or the codes that go with the weights
  const float* x_scales;           // [rows], of codes
  int rows, in;
  // values from row to row of x and of the weights, more than `in` where k is cut; filled in by the launch
  int stride;
  bool resumes, pauses;  // begins with the sums of the launch before; leaves its own for the next; the same
  int tiles;             // over all weights; the same
  bool y_f32;            // else bf16
  bool quantize;         // x is bf16 and becomes codes in the kernel
  // Not null: x is bf16 and goes through rms_norm (kernels/model/norm.h) with this weight [in] in the kernel first.
  const __nv_bfloat16* norm;
  float norm_eps, norm_offset;
  bool settled;  // no work in flight writes the weights: they may be read before the predecessor has ended
  float fixed;   // then: the scale of all rows, 0: one of its own for each
};

// What meets in a product: the weight as it lies, and x in the kernel. bf16 with bf16, i8 with i8, f8_e4m3 with
// f8_e4m3 or, unrounded, f16.
struct SkinnyTypes {
  DType w, x;
};
// Launches that so many rows of `in` values at x take with weights at `w`: one, or more that have a part of k each
// where x finds no room in shared memory; 0 where such weights are not streamed.
int skinny_launches(const CudaState& s, SkinnyTypes types, int64_t rows, int64_t in, const void* w, const void* x);
// Whether x is quantized, or normed, in the kernel; then one launch is enough.
bool skinny_prepares(int64_t rows, int64_t in);
// For `count` weights; skinny_launches() said `launches` for each. The job is that of the whole product; where there
// are several launches its x are codes and its weights have sums.
void skinny_product(CudaState& s, SkinnyTypes types, SkinnyJob job, int count, int launches);

inline void lay_norm(SkinnyJob& job, const RowNorm* norm) {
  if (!norm) return;
  FEWBIT_ASSERT(norm->weight.dtype == DType::bf16 && norm->weight.numel() == job.in);
  job.norm = norm->weight.as<__nv_bfloat16>();
  job.norm_eps = norm->eps;
  job.norm_offset = norm->offset;
}
// The products of kernels/products/gemm.h and kernels/products/bytes/byte_gemms.h by this kernel; false, and nothing
// done, where it does not take them. `settled` as in SkinnyJob; `norm` may be null.
bool streamed_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, std::span<const GemmProduct> products,
                    bool settled);
bool streamed_byte_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
                         std::span<const ByteProduct> products, bool settled);

}  // namespace fewbit::cuda
