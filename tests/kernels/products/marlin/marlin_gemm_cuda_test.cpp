// What only the GPU half of the Marlin product can get wrong: the same bits on every run, whatever the order in which
// blocks finish; the kernels with and without Hopper's instructions; products so large that many blocks share an
// output.
#include <cmath>
#include <cstring>

#include "kernels/products/gemm.h"
#include "kernels/products/marlin/marlin_gemm.h"
#include "src/core/half.h"
#include "src/core/marlin_layout.h"
#include "src/core/rng.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit {
namespace {

using test::first_difference;
using test::poisoned;
using test::random_normal;
using test::relative_error;

struct Case {
  int64_t out, in, group;
  int bits;
  bool zeros;
};

struct Weight {
  Tensor b, s, z;
  MarlinView view{};

  Weight(Exec& ex, const Case& c, uint64_t seed) {
    const int64_t groups = c.in / c.group;
    b = ex.to_device(words({c.in / 16, marlin::words_per_row(c.out, c.bits)}, seed));
    s = ex.to_device(random_normal(DType::f16, {groups, c.out}, seed + 1, 0.01f));
    if (c.zeros) z = ex.to_device(words({groups, c.out * c.bits / 32}, seed + 2));
    view = {.b = b, .s = s, .bits = c.bits, .out = c.out, .in = c.in};
    if (c.zeros) view.z = z;
  }
  static Tensor words(Shape shape, uint64_t seed) {
    const Rng rng(seed, "marlin words");
    Tensor t = Tensor::host(DType::i32, shape);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.as<uint32_t>()[i] = static_cast<uint32_t>(rng.at(static_cast<uint64_t>(i)));
    return t;
  }
};

// Many splits of k; a chunk of 64 outputs left over; one group a row; 8 bits; zero points; a last stage of k that is
// not full; less than a tile of outputs; so many outputs that k is not split; zero points in groups of 128 whose number
// is no multiple of the splits; tiles of few rows that end in one block and begin in another, of 8 bits.
const Case kCases[] = {{128, 14336, 128, 4, false}, {4160, 4096, 128, 4, false}, {1024, 2064, 2064, 4, true},
                       {512, 4096, 32, 4, true},    {576, 4096, 128, 8, false},  {2048, 1024, 64, 8, true},
                       {192, 4128, 32, 4, true},    {64, 128, 64, 4, false},     {17408, 1024, 128, 4, false},
                       {1216, 3200, 128, 4, true},  {6144, 2048, 128, 8, false}};
const int64_t kRows[] = {1, 5, 8, 9, 16, 17, 32, 33, 64, 65, 200, 257, 700};

Tensor product(Exec& ex, const Weight& w, ConstTensorView x, DType dtype) {
  Tensor y = poisoned(ex, dtype, {x.rows(), w.view.out});
  marlin_gemm(ex, x, w.view, {}, y);
  return ex.to_host(y);
}

TEST(MarlinGemmCuda, GivesTheSameBitsOnEveryRun) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const Case& c : kCases) {
    const Weight w(ex, c, 11);
    for (const int64_t rows : kRows) {
      const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, c.in}, 5));
      const Tensor first = product(ex, w, x, DType::f32);
      for (int run = 0; run < 5; ++run)
        ASSERT_EQ(first_difference(product(ex, w, x, DType::f32), first), "") << c.out << " x " << c.in << ", " << rows;
    }
  }
}

// Flagged partial sums lie in memory that every launch finds unwritten and leaves so: products of other shapes in
// between do not change a bit, and neither does memory that grew.
TEST(MarlinGemmCuda, ProductsOfOtherShapesInBetweenLeaveNothingBehind) {
  FEWBIT_NEEDS_GPU();
  for (const int64_t rows : {2, 8, 11, 16, 24, 64}) {
    std::vector<Tensor> alone;
    for (const Case& c : kCases) {
      Exec ex = Exec::cuda(0);
      alone.push_back(
          product(ex, Weight(ex, c, 11), ex.to_device(random_normal(DType::bf16, {rows, c.in}, 5)), DType::f32));
    }
    Exec ex = Exec::cuda(0);
    for (int round = 0; round < 2; ++round)
      for (size_t i = 0; i < std::size(kCases); ++i) {
        const Case& c = kCases[i];
        const Tensor y =
            product(ex, Weight(ex, c, 11), ex.to_device(random_normal(DType::bf16, {rows, c.in}, 5)), DType::f32);
        EXPECT_EQ(first_difference(y, alone[i]), "")
            << c.out << " x " << c.in << ", " << rows << " rows, round " << round;
      }
  }
}

// A NaN of any bits is a value like others, not the mark of an unwritten partial sum.
TEST(MarlinGemmCuda, NotANumberComesThrough) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Weight w(ex, {1024, 4096, 128, 4, false}, 15);
  for (const int64_t rows : {2, 16, 64, 256}) {
    Tensor x = Tensor::host(DType::bf16, {rows, 4096});
    std::memset(static_cast<void*>(x.as<bf16>()), 0xff, static_cast<size_t>(x.numel()) * sizeof(bf16));
    const Tensor y = product(ex, w, ex.to_device(x), DType::f32);
    for (int64_t i = 0; i < y.numel(); ++i) ASSERT_TRUE(std::isnan(y.as<float>()[i])) << rows << " rows, " << i;
  }
}

// A block that has all of k needs more stages than its ring has slots. Small, for racecheck.
TEST(MarlinGemmCuda, StagesThatComeRoundGiveTheSameBits) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const int bits : {4, 8}) {
    const Weight w(ex, {17408, 1024, 128, bits, true}, 14);
    for (const int64_t rows : {17, 33, 65, 129}) {
      const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, 1024}, 5));
      const Tensor first = product(ex, w, x, DType::f32);
      EXPECT_EQ(first_difference(product(ex, w, x, DType::f32), first), "") << bits << " bits, " << rows << " rows";
    }
  }
}

// [rows, times * cols]: each row, `times` times.
Tensor repeated(Exec& ex, const Tensor& t, int64_t times) {
  const Tensor host = ex.to_host(t), many = Tensor::host(t.dtype(), {t.rows(), t.cols() * times});
  const TensorView from = host, to = many;
  const int64_t bytes = t.cols() * bytes_of(t.dtype());
  for (int64_t i = 0; i < t.rows() * times; ++i)
    std::memcpy(static_cast<char*>(to.data) + i * bytes, static_cast<const char*>(from.data) + i / times * bytes,
                static_cast<size_t>(bytes));
  return ex.to_device(many);
}

// So many outputs that a block uses every buffer of its sums several times: a weight repeated gives its product
// repeated, to the bit. Small, for racecheck.
TEST(MarlinGemmCuda, OutputsThatRepeatGiveSumsThatRepeat) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  constexpr int64_t kPeriod = 7 * 64, kTimes = 321, kIn = 384;  // three warps, up to 18 chunks of 64 outputs a block
  for (const Case& c :
       {Case{kPeriod, kIn, 128, 4, false}, Case{kPeriod, kIn, 64, 4, true}, Case{kPeriod, kIn, 128, 8, true}}) {
    const Weight once(ex, c, 16);
    const Tensor b = repeated(ex, once.b, kTimes), s = repeated(ex, once.s, kTimes);
    MarlinView view{.b = b, .s = s, .bits = c.bits, .out = kPeriod * kTimes, .in = kIn};
    Tensor z;
    if (c.zeros) view.z = z = repeated(ex, once.z, kTimes);
    for (const int64_t rows : {1, 3, 16, 32}) {
      if (rows > 16 && c.bits == 4) continue;  // another kernel serves these
      const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, kIn}, 9)),
                   want = product(ex, once, x, DType::f32);
      Tensor y = poisoned(ex, DType::f32, {rows, view.out});
      marlin_gemm(ex, x, view, {}, y);
      y = ex.to_host(y);
      Tensor first = Tensor::host(DType::f32, {rows, kPeriod});
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < view.out; ++i) {
          const float v = y.as<float>()[r * view.out + i];
          if (i < kPeriod) first.as<float>()[r * kPeriod + i] = v;
          ASSERT_EQ(v, first.as<float>()[r * kPeriod + i % kPeriod])
              << c.bits << " bits, " << rows << " rows, " << r << ", " << i;
        }
      EXPECT_LT(relative_error(first, want), tol::kF32Product) << c.bits << " bits, " << rows << " rows";
    }
  }
}

TEST(MarlinGemmCuda, AgreesWithTheDenseProductOfTheDequantizedWeight) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const Case& c : kCases) {
    const Weight w(ex, c, 12);
    const Tensor dense = ex.alloc(DType::f32, {c.out, c.in});
    marlin_dequantize(ex, w.view, dense);
    for (const int64_t rows : kRows) {
      const Tensor x = random_normal(DType::bf16, {rows, c.in}, 6);
      const Tensor x32 = ex.to_device(test::to_f32(x)), want = ex.alloc(DType::f32, {rows, c.out});
      gemm(ex, x32, dense, {}, want);
      const Tensor got = product(ex, w, ex.to_device(x), DType::f32);
      // Up to 16 rows the weight is exact; beyond, it is rounded to bf16.
      const double tolerance = rows <= 16 ? tol::kF32Product : tol::kBf16Op;
      EXPECT_LT(relative_error(got, ex.to_host(want)), tolerance)
          << c.out << " x " << c.in << " group " << c.group << " bits " << c.bits << " rows " << rows;
    }
  }
}

// So large that a split of k is as long as x finds room for in shared memory, and that more than eight rows are
// computed 64 outputs at a time.
TEST(MarlinGemmCuda, RowsOfLargeProductsEqualTheirOwn) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const Case& c :
       {Case{8192, 28672, 128, 4, false}, Case{8192, 28672, 128, 4, true}, Case{5120, 27648, 128, 4, false}}) {
    const Weight w(ex, c, 17);
    for (const int64_t rows : {16, 11, 8}) {
      const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, c.in}, 5)), all = product(ex, w, x, DType::f32);
      for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
        const Tensor alone = product(ex, w, x.view().row_range(row, row + 1), DType::f32);
        EXPECT_LE(relative_error(all.view().row_range(row, row + 1), alone), tol::kBf16Op)
            << c.out << "x" << c.in << " zeros " << c.zeros << " row " << row << " of " << rows;
      }
    }
  }
}

// Activations beyond the range of f16 too, whatever the other rows hold, and up to the bounds in
// kernels/products/marlin/marlin_gemm.h where it has some.
TEST(MarlinGemmCuda, ARowTimesAPowerOfTwoGivesItsProductTimesThat) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const Case& c : kCases) {
    const Weight w(ex, c, 15);
    for (const int64_t rows : {1, 5, 8, 9, 16}) {
      const bool bounded = c.bits == 4 && c.group >= 128 && (rows > 1 || c.zeros);
      const auto power = [&](int64_t row) {
        return bounded ? static_cast<int>(row * 37 % 101) - 40 : static_cast<int>(row * 37 % 151) - 70;
      };
      const Tensor x = random_normal(DType::bf16, {rows, c.in}, 8), scaled = Tensor::host(DType::bf16, {rows, c.in});
      for (int64_t i = 0; i < x.numel(); ++i)
        scaled.as<bf16>()[i] = std::ldexp(static_cast<float>(x.as<bf16>()[i]), power(i / c.in));
      const Tensor want = product(ex, w, ex.to_device(x), DType::f32),
                   got = product(ex, w, ex.to_device(scaled), DType::f32);
      for (int64_t i = 0; i < want.numel(); ++i)
        ASSERT_EQ(got.as<float>()[i], std::ldexp(want.as<float>()[i], power(i / c.out)))
            << c.out << " x " << c.in << ", " << rows << " rows, row " << i / c.out;
    }
  }
}

TEST(MarlinGemmCuda, ThePathOfOlderHardwareAgrees) {
  FEWBIT_NEEDS_GPU();
#ifdef FEWBIT_HAS_CUDA
  Exec ex = Exec::cuda(0), older = Exec::cuda(0);
  cuda::force_sm80_path(older, true);
  for (const Case& c : kCases) {
    const Weight w(ex, c, 13), w_older(older, c, 13);
    for (const int64_t rows : kRows) {
      const Tensor x = random_normal(DType::bf16, {rows, c.in}, 7);
      EXPECT_LT(relative_error(product(ex, w, ex.to_device(x), DType::f32),
                               product(older, w_older, older.to_device(x), DType::f32)),
                tol::kBf16Op)
          << c.out << " x " << c.in << " rows " << rows;
    }
  }
#endif
}

}  // namespace
}  // namespace fewbit
