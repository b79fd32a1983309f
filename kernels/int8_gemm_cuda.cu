// int8 products: dp4a for few rows (kernels/byte_product.cuh), the tensor cores through cuBLASLt for many, raw int32
// sums either way, scaled on the way to y. Shapes that the library does not take run in runs of 16 rows.
#include <algorithm>

#include "kernels/byte_product.cuh"

namespace fewbit::cuda {
namespace {

struct Int8Code {
  using Sum = int;
  static __device__ __forceinline__ int dot16(uint4 x, uint4 w, int sum) {
    sum = __dp4a(static_cast<int>(x.x), static_cast<int>(w.x), sum);
    sum = __dp4a(static_cast<int>(x.y), static_cast<int>(w.y), sum);
    sum = __dp4a(static_cast<int>(x.z), static_cast<int>(w.z), sum);
    return __dp4a(static_cast<int>(x.w), static_cast<int>(w.w), sum);
  }
  static __device__ __forceinline__ int dot1(uint8_t x, uint8_t w, int sum) {
    return sum + static_cast<int>(static_cast<int8_t>(x)) * static_cast<int8_t>(w);
  }
};

constexpr LibraryTypes kInt8{CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I};

void in_runs(CudaState& s, ByteTask t) {
  const int64_t rows = t.rows;
  for (int64_t r = 0; r < rows; r += kFewByteRows) {
    t.rows = std::min(kFewByteRows, rows - r);
    launch_few_rows<Int8Code>(s.stream, t);
    t.x += t.rows * t.in;
    t.x_scales += t.rows;
    t.y = static_cast<char*>(t.y) + t.rows * t.out * bytes_of(t.y_dtype);
  }
}

}  // namespace

void int8_product(CudaState& s, ConstTensorView x, const RowQuant& q, const ByteTask& task) {
  for_row_chunks(
      s, x, q, task, {}, [&](const ByteTask& part) { launch_few_rows<Int8Code>(s.stream, part); },
      [&](const ByteTask& part, uint8_t* at, uint8_t*) {
        auto* sums = reinterpret_cast<int32_t*>(at);
        if (library_takes(part) && library_product(s, kInt8, part, sums))
          scale_sums(s.stream, sums, part);
        else
          in_runs(s, part);
      });
}

}  // namespace fewbit::cuda
