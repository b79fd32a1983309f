// Chooses the kernels for products of 8-bit codes: few rows by the kernel of skinny.cuh, for several weights in one
// launch; the others one weight after another (fp8_gemm_cuda.cu, int8_gemm_cuda.cu, fp8_unrounded_cuda.cu).
#include <algorithm>
#include <vector>

#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/bytes/byte_product.cuh"
#include "kernels/products/bytes/library_product.cuh"
#include "kernels/products/skinny_job.cuh"

namespace fewbit::cuda {
namespace {

using byte_product::make_task;
using byte_product::Task;

// kUnrounded: E4M3 weights, x as f16.
skinny::Types types_of(const RowQuant& q) { return {q.codes == DType::f16 ? DType::f8_e4m3 : q.codes, q.codes}; }

// The k splits with which the kernel of skinny.cuh takes all the products; 0 where it does not take one of them.
int k_splits_of(const CudaState& s, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  if (x.dtype != DType::bf16 || products.size() > skinny::Job::kWeights) return 0;
  int splits = 0;
  for (const ByteProduct& p : products) {
    if (p.y.dtype != products[0].y.dtype) return 0;
    splits = skinny::k_splits(s, types_of(q), x.rows(), x.cols(), p.w.codes.data, x.data);
    if (splits == 0) return 0;
  }
  return splits;
}

KernelProblem problem_of(ConstTensorView x, const RowQuant& q, const ByteProduct& p) {
  return byte_product::problem_of(make_task(x, p), x.dtype, q.codes, false);
}

// x is quantized in the kernel where it is small, else first, into scratch memory beside the sums of the k splits.
void launch_skinny(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
                   std::span<const ByteProduct> products, bool settled, int splits) {
  const int64_t rows = x.rows(), in = x.cols();
  skinny::Job job{};
  int64_t outs = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Task task = make_task(x, products[i]);
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
  job.quantize = skinny::prepares_x(rows, in);
  skinny::set_norm(job, norm);
  job.fixed = q.fixed;
  job.x = x.data;
  if (!job.quantize) {
    const int64_t codes = byte_product::aligned_bytes(rows * in * bytes_of(q.codes));
    const int64_t scales = byte_product::aligned_bytes(4 * rows), all_sums = splits > 1 ? 4 * rows * outs : 0;
    auto* room = static_cast<uint8_t*>(s.scratch(static_cast<size_t>(codes + scales + all_sums)));
    launch_quantize_rows(s, x, q, room, reinterpret_cast<float*>(room + codes));
    job.x = room;
    job.x_scales = reinterpret_cast<const float*>(room + codes);
    uint8_t* sums = room + codes + scales;
    for (skinny::Weight& weight : job.weights) {
      weight.sums = sums;
      sums += 4 * rows * weight.out;
    }
  }
  skinny::launch_products(s, types_of(q), job, static_cast<int>(products.size()), splits);
}

void check_products(ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  FEWBIT_ASSERT((q.codes == DType::i8 || q.codes == DType::f8_e4m3 || q.codes == DType::f16) && q.group == 0);
  FEWBIT_ASSERT(q.codes != DType::i8 || x.cols() < (1 << 17));
  for (const ByteProduct& p : products) FEWBIT_ASSERT(p.w.codes.dtype == types_of(q).w && !(p.add && p.bias.data));
}

}  // namespace

bool skinny::try_byte_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, const RowQuant& q,
                            std::span<const ByteProduct> products, bool settled) {
  check_products(x, q, products);
  const int splits = k_splits_of(s, x, q, products);
  if (splits == 0 || (norm && !skinny::prepares_x(x.rows(), x.cols()))) return false;
  // One launch takes all of them or none: the library is the quicker way only where it has every product.
  if (std::none_of(products.begin(), products.end(), [&](const ByteProduct& p) {
        return choose_kernel(problem_of(x, q, p), s.traits()).kernel == Kernel::skinny;
      }))
    return false;
  launch_skinny(s, x, norm, q, products, settled, splits);
  return true;
}

namespace {

// Quantized rows, one weight after another.
void quantized_products(CudaState& s, const prepare_rows::Source& source, const RowQuant& q,
                        std::span<const ByteProduct> products) {
  std::vector<Task> tasks;
  for (const ByteProduct& p : products)
    if (const Task task = make_task(source.x, p); task.out > 0) tasks.push_back(task);
  if (tasks.empty()) return;
  if (q.codes == DType::i8)
    byte_product::int8_products(s, source, q, tasks);
  else
    byte_product::fp8_products(s, source, q, tasks);
}

void run_products(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products, bool settled) {
  check_products(x, q, products);
  if (x.rows() == 0) return;
  while (!products.empty()) {
    const std::span<const ByteProduct> some = products.first(std::min<size_t>(products.size(), kByteGemmsAtOnce));
    products = products.subspan(some.size());
    if (skinny::try_byte_gemms(ex.cuda_state(), x, nullptr, q, some, settled)) continue;
    if (q.codes != DType::f16) {
      quantized_products(ex.cuda_state(), {.x = x}, q, some);
      continue;
    }
    fp8_unrounded::products(ex.cuda_state(), x, some);
  }
}

}  // namespace

bool byte_product::try_prepared_gemms(CudaState& s, const prepare_rows::Source& source, const RowQuant& q,
                                      std::span<const ByteProduct> products) {
  check_products(source.x, q, products);
  if (source.x.rows() <= kFewByteRows || !prepare_rows::fits(source, q)) return false;
  quantized_products(s, source, q, products);
  return true;
}

void byte_gemms(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  run_products(ex, x, q, products, true);
}

void int8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
               TensorView y) {
  FEWBIT_ASSERT(q.codes == DType::i8);
  const ByteProduct product{.w = w, .bias = bias, .y = y};
  run_products(ex, x, q, std::span(&product, 1), false);
}

void fp8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
              TensorView y) {
  FEWBIT_ASSERT(q.codes == DType::f8_e4m3 || q.codes == DType::f16);
  const ByteProduct product{.w = w, .bias = bias, .y = y};
  run_products(ex, x, q, std::span(&product, 1), false);
}

}  // namespace fewbit::cuda
