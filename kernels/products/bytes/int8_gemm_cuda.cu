// int8 products, where skinny.cuh does not take them: dp4a for few rows (byte_rows.cuh), the tensor cores through
// cuBLASLt for more, where it takes the shape; else dp4a again, 16 rows at a time. Sums are int32, so all of them give
// the same bits.
#include <algorithm>
#include <optional>

#include "kernels/products/bytes/byte_rows.cuh"
#include "kernels/products/bytes/library_product.cuh"

namespace fewbit::cuda::byte_product {
namespace {

struct I8Dot {
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

constexpr LibraryTypes kI8Sums{CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I};

// Any number of rows, kFewByteRows in a launch.
void few_rows_at_a_time(CudaState& s, Task t) {
  const int64_t rows = t.rows;
  for (int64_t r = 0; r < rows; r += kFewByteRows) {
    t.rows = std::min(kFewByteRows, rows - r);
    launch_few_rows<I8Dot>(s.stream, t);
    t.x += t.rows * t.in;
    t.x_scales += t.rows;
    t.y = static_cast<char*>(t.y) + t.rows * t.out * bytes_of(t.y_dtype);
  }
}

}  // namespace

void int8_products(CudaState& s, const prepare_rows::Source& source, const RowQuant& q, std::span<const Task> tasks) {
  const auto by_library = [&](const Task& t) {
    return choose_kernel(problem_of(t, source.x.dtype, DType::i8, true), s.traits()).kernel == Kernel::library_codes;
  };
  const auto room_of = [&](int64_t rows) {
    int64_t most = 0;
    for (Task t : tasks) {
      t.rows = rows;
      if (by_library(t)) most = std::max(most, aligned_bytes(4 * rows * t.out));
    }
    return most;
  };
  for_row_chunks(s, source, q, tasks, room_of, [&](const Task& t, size_t, uint8_t* room) {
    const std::optional<LibraryProduct> product =
        by_library(t) ? std::optional(LibraryProduct::raw(s, kI8Sums, t)) : std::nullopt;
    if (!product || !*product) return few_rows_at_a_time(s, t);
    product->run(s, t, room);
    scale_sums(s.stream, reinterpret_cast<const int32_t*>(room), t);
  });
}

}  // namespace fewbit::cuda::byte_product
