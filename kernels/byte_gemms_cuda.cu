// Products of 8-bit codes for several weights of one x: few rows by the kernel of skinny.cuh, in one launch;
// the rest one after another.
#include <algorithm>
#include <vector>

#include "kernels/byte_gemms.h"
#include "kernels/byte_product.cuh"
#include "kernels/skinny_job.cuh"

namespace fewbit::cuda {
namespace {

SkinnyTypes types_of(const RowQuant& q) { return {q.codes == DType::f16 ? DType::f8_e4m3 : q.codes, q.codes}; }

// Rows of x that one launch takes for all products, evenly shared out; 0 where they are none of skinny.cuh's. More
// rows than it has a variant for come in as many passes as cost less than dequantizing, where that is what else there is:
// unrounded.
int rows_at_once(const CudaState& s, ConstTensorView x, const RowQuant& q,
                 std::span<const ByteProduct> products) {
  if (x.dtype != DType::bf16) return 0;
  constexpr int64_t kMostPasses = 4;
  const int64_t asked = q.codes == DType::f16 ? std::min<int64_t>(x.rows(), SkinnyJob::kRows) : x.rows();
  int rows = SkinnyJob::kRows;
  for (const ByteProduct& p : products) {
    if (p.y.dtype != products[0].y.dtype) return 0;
    rows = std::min(rows, skinny_rows(s, types_of(q), asked, x.cols(), p.w.codes.data, x.data));
  }
  if (rows == 0) return 0;
  const int64_t passes = (x.rows() + rows - 1) / rows;
  if (x.rows() > SkinnyJob::kRows && passes > kMostPasses) return 0;
  return static_cast<int>((x.rows() + passes - 1) / passes);
}

void stream(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
            std::span<const ByteProduct> products, bool settled) {
  const int64_t rows = x.rows(), in = x.cols();
  SkinnyJob job{};
  for (size_t i = 0; i < products.size(); ++i) {
    const ByteTask task = make_byte_task(x, products[i]);
    job.weights[i] = {.w = task.w,
                      .scales = task.w_scales,
                      .bias = static_cast<const __nv_bfloat16*>(task.bias),
                      .y = task.y,
                      .add = task.add,
                      .out = static_cast<int>(task.out),
                      .end_tile = 0};
  }
  job.rows = static_cast<int>(rows);
  job.in = static_cast<int>(in);
  job.y_f32 = products[0].y.dtype == DType::f32;
  job.settled = settled;
  job.quantize = skinny_prepares(rows, in);
  lay_norm(job, norm);
  job.fixed = q.fixed;
  job.x = x.data;
  if (!job.quantize) {
    const int64_t codes = aligned_bytes(rows * in * bytes_of(q.codes));
    auto* room = static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + 4 * rows)));
    auto* scales = reinterpret_cast<float*>(room + codes);
    launch_quantize_rows(s, x, q, room, scales);
    job.x = room;
    job.x_scales = scales;
  }
  skinny_product(s, types_of(q), job, static_cast<int>(products.size()));
}

void check_products(ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  FEWBIT_ASSERT((q.codes == DType::i8 || q.codes == DType::f8_e4m3 || q.codes == DType::f16) && q.group == 0);
  FEWBIT_ASSERT(q.codes != DType::i8 || x.cols() < (1 << 17));
  for (const ByteProduct& p : products)
    FEWBIT_ASSERT(p.w.codes.dtype == types_of(q).w && !(p.add && p.bias.data));
}

}  // namespace

bool streamed_byte_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
                         std::span<const ByteProduct> products, bool settled) {
  check_products(x, q, products);
  const int at_once = products.size() > SkinnyJob::kWeights ? 0 : rows_at_once(s, x, q, products);
  if (at_once == 0 || (norm && !skinny_prepares(at_once, x.cols()))) return false;
  for (int64_t r = 0; r < x.rows(); r += at_once) {
    const int64_t end = std::min(x.rows(), r + at_once);
    std::vector<ByteProduct> part(products.begin(), products.end());
    for (ByteProduct& p : part) p.y = p.y.row_range(r, end);
    stream(s, x.row_range(r, end), norm, q, part, settled);
  }
  return true;
}

namespace {

void run(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products,
         bool settled) {
  check_products(x, q, products);
  if (x.rows() == 0) return;
  while (!products.empty()) {
    const std::span<const ByteProduct> some =
        products.first(std::min<size_t>(products.size(), kByteGemmsAtOnce));
    products = products.subspan(some.size());
    if (streamed_byte_gemms(ex.cuda_state(), x, nullptr, q, some, settled)) continue;
    for (const ByteProduct& p : some) {
      const ByteTask task = make_byte_task(x, p);
      if (task.out == 0) continue;
      if (q.codes == DType::i8)
        int8_product(ex.cuda_state(), x, q, task);
      else if (q.codes == DType::f16)
        unrounded_product(ex.cuda_state(), x, p);
      else
        fp8_product(ex.cuda_state(), x, q, task);
    }
  }
}

}  // namespace

void byte_gemms(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  run(ex, x, q, products, true);
}

void int8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
               TensorView y) {
  FEWBIT_ASSERT(q.codes == DType::i8);
  const ByteProduct product{.w = w, .bias = bias, .y = y};
  run(ex, x, q, std::span(&product, 1), false);
}

void fp8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
              TensorView y) {
  FEWBIT_ASSERT(q.codes == DType::f8_e4m3 || q.codes == DType::f16);
  const ByteProduct product{.w = w, .bias = bias, .y = y};
  run(ex, x, q, std::span(&product, 1), false);
}

}  // namespace fewbit::cuda
