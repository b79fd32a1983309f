// Loops over many rows give the bits of those over one row after the other.
#include "kernels/cpu/cpu_rows.h"

#include <vector>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

template <class T>
void rows_are_taken_one_by_one(DType dtype) {
  for (const int64_t n : {7, 64, 80, 128, 200})
    for (const int64_t rows : {0, 1, 5, 33}) {
      const int64_t ld = n + 8;
      const Tensor a = random_normal(DType::f32, {1, std::max(n, rows)}, 1), x = random_normal(dtype, {40, ld}, 2);
      std::vector<float> each(40), all(40), sum(at(n), 0.5f), sums(at(n), 0.5f);
      for (int64_t j = 0; j < rows; ++j) {
        each[at(j)] = 0.3f * cpu::dot(a.as<float>(), x.as<T>() + j * ld, n);
        cpu::axpy(a.as<float>()[j], x.as<T>() + j * ld, sum.data(), n);
      }
      cpu::dots(a.as<float>(), 0.3f, x.as<T>(), ld, rows, n, all.data());
      cpu::add_rows(a.as<float>(), x.as<T>(), ld, rows, sums.data(), n);
      EXPECT_EQ(each, all) << n << " values, rows " << rows;
      EXPECT_EQ(sum, sums) << n << " values, rows " << rows;
    }
}

TEST(CpuRows, ManyRowsHaveTheBitsOfOneAfterTheOther) {
  rows_are_taken_one_by_one<float>(DType::f32);
  rows_are_taken_one_by_one<bf16>(DType::bf16);
}

TEST(CpuRows, ADotIsTheSumOfItsProducts) {
  for (const int64_t n : {1, 63, 64, 65, 448, 500}) {
    const Tensor a = random_normal(DType::f32, {1, n}, 1), b = random_normal(DType::bf16, {1, n}, 2);
    const std::vector<double> wide = doubles(b);
    double sum = 0, size = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += a.as<float>()[i] * wide[at(i)];
      size += std::abs(a.as<float>()[i] * wide[at(i)]);
    }
    EXPECT_LE(std::abs(cpu::dot(a.as<float>(), b.as<bf16>(), n) - sum), tol::kF32Op * size) << n;
  }
}

}  // namespace
}  // namespace fewbit::test
