// Products of 8-bit codes for several weights of one x: few rows by the kernel of skinny.cuh, in one launch;
// the rest one after another.
#include <algorithm>
#include <vector>

#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/bytes/byte_product.cuh"
#include "kernels/products/skinny_job.cuh"

namespace fewbit::cuda {
namespace {

SkinnyTypes types_of(const RowQuant& q) { return {q.codes == DType::f16 ? DType::f8_e4m3 : q.codes, q.codes}; }

// Launches of the kernel of skinny.cuh that take all the products; 0 where it has none for one of them.
int launches_of(const CudaState& s, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  if (x.dtype != DType::bf16 || products.size() > SkinnyJob::kWeights) return 0;
  int launches = 0;
  for (const ByteProduct& p : products) {
    if (p.y.dtype != products[0].y.dtype) return 0;
    launches = skinny_launches(s, types_of(q), x.rows(), x.cols(), p.w.codes.data, x.data);
    if (launches == 0) return 0;
  }
  return launches;
}

// Whether the library's products are quicker than so many launches: its tensor cores take x in codes, and all rows at
// once.
bool library_is_quicker(const CudaState& s, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products,
                        int launches) {
  const bool unrounded = q.codes == DType::f16;
  const int64_t least = unrounded && launches > 1 ? 5 : kLeastLibraryRows;
  if (x.rows() < least || (launches == 1 && !unrounded) || (q.codes != DType::i8 && !fp8_tensor_cores(s))) return false;
  return std::all_of(products.begin(), products.end(),
                     [&](const ByteProduct& p) { return library_takes(make_byte_task(x, p)); });
}

void stream(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
            std::span<const ByteProduct> products, bool settled, int launches) {
  const int64_t rows = x.rows(), in = x.cols();
  SkinnyJob job{};
  int64_t outs = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const ByteTask task = make_byte_task(x, products[i]);
    job.weights[i] = {.w = task.w,
                      .scales = task.w_scales,
                      .bias = static_cast<const __nv_bfloat16*>(task.bias),
                      .y = task.y,
                      .sums = nullptr,
                      .add = task.add,
                      .out = static_cast<int>(task.out),
                      .end_tile = 0};
    outs += task.out;
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
    const int64_t codes = aligned_bytes(rows * in * bytes_of(q.codes)), scales = aligned_bytes(4 * rows);
    auto* room =
        static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + scales + (launches > 1 ? 4 * rows * outs : 0))));
    launch_quantize_rows(s, x, q, room, reinterpret_cast<float*>(room + codes));
    job.x = room;
    job.x_scales = reinterpret_cast<const float*>(room + codes);
    uint8_t* sums = room + codes + scales;
    for (SkinnyWeight& weight : job.weights) {
      weight.sums = sums;
      sums += 4 * rows * weight.out;
    }
  }
  skinny_product(s, types_of(q), job, static_cast<int>(products.size()), launches);
}

void check_products(ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  FEWBIT_ASSERT((q.codes == DType::i8 || q.codes == DType::f8_e4m3 || q.codes == DType::f16) && q.group == 0);
  FEWBIT_ASSERT(q.codes != DType::i8 || x.cols() < (1 << 17));
  for (const ByteProduct& p : products) FEWBIT_ASSERT(p.w.codes.dtype == types_of(q).w && !(p.add && p.bias.data));
}

}  // namespace

bool streamed_byte_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
                         std::span<const ByteProduct> products, bool settled) {
  check_products(x, q, products);
  const int launches = launches_of(s, x, q, products);
  if (launches == 0 || (norm && !skinny_prepares(x.rows(), x.cols()))) return false;
  if (library_is_quicker(s, x, q, products, launches)) return false;
  stream(s, x, norm, q, products, settled, launches);
  return true;
}

namespace {

void by_rows(CudaState& s, const RowSource& source, const RowQuant& q, std::span<const ByteProduct> products) {
  std::vector<ByteTask> tasks;
  for (const ByteProduct& p : products)
    if (const ByteTask task = make_byte_task(source.x, p); task.out > 0) tasks.push_back(task);
  if (tasks.empty()) return;
  if (q.codes == DType::i8)
    int8_products(s, source, q, tasks);
  else
    fp8_products(s, source, q, tasks);
}

void run(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products, bool settled) {
  check_products(x, q, products);
  if (x.rows() == 0) return;
  while (!products.empty()) {
    const std::span<const ByteProduct> some = products.first(std::min<size_t>(products.size(), kByteGemmsAtOnce));
    products = products.subspan(some.size());
    if (streamed_byte_gemms(ex.cuda_state(), x, nullptr, q, some, settled)) continue;
    if (q.codes != DType::f16) {
      by_rows(ex.cuda_state(), {.x = x}, q, some);
      continue;
    }
    unrounded_products(ex.cuda_state(), x, some);
  }
}

}  // namespace

bool prepared_byte_gemms(CudaState& s, const RowSource& source, const RowQuant& q,
                         std::span<const ByteProduct> products) {
  check_products(source.x, q, products);
  if (source.x.rows() <= kFewByteRows || !prepares_rows(source, q)) return false;
  by_rows(s, source, q, products);
  return true;
}

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
