// Products of few rows with several weights at once (kernels/products/gemm.h, kernels/products/bytes/byte_gemms.h):
// against the products one by one on the CPU, at the borders of what the GPU's kernel for few rows takes; and the bits
// of a row alone and among others.
#include <array>
#include <cstring>
#include <span>

#include "kernels/model/norm.h"
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/gemm.h"
#include "kernels/products/normed_gemms.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// In this order: steps of k that the warps of a block divide evenly; that they do not, and a single output; a weight
// that the kernel for few rows does not take; many tiles; more weights than one launch takes; more k than 9 rows of x
// find room for in shared memory, which is cut into uneven splits.
struct Case {
  int64_t in;
  std::vector<int64_t> outs;
};
const Case kCases[] = {{1024, {40, 16, 7}}, {1088, {1, 33}},          {100, {40, 16}},
                       {4096, {4400, 48}},  {2048, {16, 32, 48, 64}}, {8256, {20, 48, 5}}};
const int64_t kRows[] = {1, 2, 3, 8, 9, 16, 17, 33, 65};

Tensor random_codes(DType type, Shape shape, uint64_t seed) {
  Tensor t = Tensor::host(type, shape);
  const Rng rng(seed, "codes");
  for (int64_t i = 0; i < t.numel(); ++i) {
    const auto byte = static_cast<uint8_t>(rng.at(static_cast<uint64_t>(i)));
    t.as<uint8_t>()[i] = type == DType::f8_e4m3 && byte % 128 == 127 ? byte - 1 : byte;  // no NaN
  }
  return t;
}

// The weights of a case on a device; `type` bf16, i8, f8_e4m3, or f16: E4M3 with x unrounded.
struct Weights {
  DType type;
  std::vector<Tensor> codes, scales, bias;

  Weights(Exec& ex, const Case& c, DType t) : type(t) {
    for (const int64_t out : c.outs) {
      const auto seed = static_cast<uint64_t>(out);
      codes.push_back(ex.to_device(type == DType::bf16 ? random_normal(type, {out, c.in}, seed)
                                                       : random_codes(code_type(), {out, c.in}, seed)));
      scales.push_back(ex.to_device(random_normal(DType::f32, {out}, seed + 1, 0.01f)));
      bias.push_back(ex.to_device(random_normal(DType::bf16, {out}, seed + 2)));
    }
  }
  DType code_type() const { return type == DType::f16 ? DType::f8_e4m3 : type; }
  enum Kind { plain, biased, added };
  // y of every weight, on the host. `added`: the product is added to 0.5 everywhere.
  std::vector<Tensor> products(Exec& ex, const Tensor& x, Kind kind, DType y_dtype, float fixed = 0) const {
    const Tensor dx = ex.to_device(x);
    std::vector<Tensor> ys;
    std::vector<GemmProduct> dense;
    std::vector<ByteProduct> bytes;
    for (size_t i = 0; i < codes.size(); ++i) {
      const Shape shape = {x.rows(), codes[i].rows()};
      Tensor half = Tensor::host(y_dtype, shape);
      for (int64_t e = 0; e < half.numel(); ++e)
        if (y_dtype == DType::f32)
          half.as<float>()[e] = 0.5f;
        else
          half.as<bf16>()[e] = 0.5f;
      ys.push_back(kind == added ? ex.to_device(half) : poisoned(ex, y_dtype, shape));
      const ConstTensorView b = kind == biased ? bias[i].view() : ConstTensorView{};
      dense.push_back({.w = codes[i], .bias = b, .y = ys[i], .add = kind == added});
      bytes.push_back({.w = {.codes = codes[i], .scales = scales[i]}, .bias = b, .y = ys[i], .add = kind == added});
    }
    if (type == DType::bf16)
      gemms(ex, dx, dense);
    else
      byte_gemms(ex, dx, {.codes = type, .fixed = fixed}, bytes);
    for (Tensor& y : ys) y = ex.to_host(y);
    return ys;
  }
};

constexpr DType kTypes[] = {DType::bf16, DType::i8, DType::f8_e4m3, DType::f16};

double limit(DType type, DType y_dtype, int64_t rows, int64_t in) {
  if (y_dtype == DType::bf16) return tol::kBf16Op;
  if (type == DType::f8_e4m3) return tol::kF8Product;
  if (type != DType::f16) return tol::kF32Product;
  // By the kernel for few rows; perhaps as two E4M3 terms; else code * scale is rounded to bf16.
  return in < 1024 || rows > 16 ? tol::kBf16Op : rows > 8 ? tol::kF8Product : tol::kF32Product;
}

void give_their_products(Exec& ex, std::span<const Case> cases, std::span<const int64_t> row_counts) {
  Exec host = Exec::cpu();
  for (const DType type : kTypes)
    for (const Case& c : cases) {
      const Weights w(ex, c, type), reference(host, c, type);
      for (const int64_t rows : row_counts) {
        const Tensor x = random_normal(DType::bf16, {rows, c.in}, 4);
        for (const DType y_dtype : {DType::f32, DType::bf16})
          for (const Weights::Kind kind : {Weights::plain, Weights::biased, Weights::added}) {
            const float fixed = kind == Weights::biased ? 0.03f : 0;
            const std::vector<Tensor> found = w.products(ex, x, kind, y_dtype, fixed),
                                      want = reference.products(host, x, kind, DType::f32, fixed);
            for (size_t i = 0; i < found.size(); ++i)
              EXPECT_LE(relative_error(found[i], want[i]), limit(type, y_dtype, rows, c.in))
                  << name_of(type) << " to " << name_of(y_dtype) << " [" << rows << ", " << c.in << "] -> " << c.outs[i]
                  << " kind " << kind;
          }
      }
    }
}

FEWBIT_DEVICE_TEST(FewRows, SeveralWeightsAtOnceGiveTheirProducts) { give_their_products(ex, kCases, kRows); }

// Few enough to end soon under compute-sanitizer.
TEST(FewRows, CudaSmallProducts) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  give_their_products(ex, std::span(kCases).first(3), std::array<int64_t, 3>{2, 9, 17});
}

// A norm inside the product against a norm before it: the same bits.
FEWBIT_DEVICE_TEST(FewRows, ANormInTheProductHasTheBitsOfANormBeforeIt) {
  for (const DType type : kTypes)
    for (const int64_t in : {1088, 4096}) {
      const Case c{in, {40, 16, 7}};
      const Weights w(ex, c, type);
      const Tensor weight = ex.to_device(random_normal(DType::bf16, {in}, 8));
      for (const int64_t rows : {1, 2, 3, 16}) {
        const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, in}, 7));
        const Tensor normed = ex.alloc(DType::bf16, {rows, in}), room = ex.alloc(DType::bf16, {rows, in});
        rms_norm(ex, x, weight, 1e-5f, 1.f, normed);
        const std::vector<Tensor> want = w.products(ex, ex.to_host(normed), Weights::plain, DType::bf16);
        std::vector<Tensor> found;
        std::vector<GemmProduct> dense;
        std::vector<ByteProduct> bytes;
        for (size_t i = 0; i < c.outs.size(); ++i) {
          found.push_back(poisoned(ex, DType::bf16, {rows, c.outs[i]}));
          dense.push_back({.w = w.codes[i], .y = found[i]});
          bytes.push_back({.w = {.codes = w.codes[i], .scales = w.scales[i]}, .y = found[i]});
        }
        const RowNorm norm{.weight = weight, .eps = 1e-5f, .offset = 1.f};
        if (type == DType::bf16)
          normed_gemms(ex, x, norm, room, dense);
        else
          normed_byte_gemms(ex, x, norm, room, {.codes = type}, bytes);
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_EQ(first_difference(ex.to_host(found[i]), want[i]), "")
              << name_of(type) << " [" << rows << ", " << in << "] -> " << c.outs[i];
      }
    }
}

// The rows of x one by one against all of them in one product: the same bits.
void rows_stand_alone(Exec& ex, DType type, const Case& c, int64_t rows) {
  const Weights w(ex, c, type);
  const Tensor x = random_normal(DType::bf16, {rows, c.in}, 5);
  const std::vector<Tensor> together = w.products(ex, x, Weights::plain, DType::f32);
  for (int64_t r = 0; r < rows; ++r) {
    Tensor row = Tensor::host(DType::bf16, {1, c.in});
    std::memcpy(row.view().data, x.as<bf16>() + r * c.in, static_cast<size_t>(c.in) * sizeof(bf16));
    const std::vector<Tensor> alone = w.products(ex, row, Weights::plain, DType::f32);
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(first_difference(alone[i], together[i].view().row_range(r, r + 1)), "")
          << name_of(type) << " " << c.in << " row " << r << " of " << rows;
  }
}

// Rows beyond the range of f16 on either side (not of normal bf16 numbers: some processors multiply what is smaller as
// zeros), one with a value that dwarfs the others, one of zeros, one with a NaN.
FEWBIT_DEVICE_TEST(FewRows, UnroundedInputsOfAnySize) {
  constexpr int64_t kIn = 1024, kOut = 48, kRowsInAll = 20;
  const Weights w(ex, {kIn, {kOut}}, DType::f16);
  Exec host = Exec::cpu();
  const Weights reference(host, {kIn, {kOut}}, DType::f16);
  Tensor x = random_normal(DType::bf16, {kRowsInAll, kIn}, 9);
  const float factors[] = {1e30f, 1e-30f, 1, 0, 1, 1e-34f};
  const auto factor_of = [&](int64_t r) { return factors[r % 6]; };
  for (int64_t r = 0; r < kRowsInAll; ++r)
    for (int64_t i = 0; i < kIn; ++i)
      x.as<bf16>()[r * kIn + i] = static_cast<float>(x.as<bf16>()[r * kIn + i]) * factor_of(r);
  x.as<bf16>()[2 * kIn + 5] = 3e4f;
  x.as<bf16>()[4 * kIn + 7] = NAN;
  for (const int64_t rows : {int64_t{3}, int64_t{6}, kRowsInAll}) {  // by the kernel for few rows, twice; as two terms
    const Tensor first = Tensor::host(DType::bf16, {rows, kIn});
    std::memcpy(first.view().data, x.view().data, static_cast<size_t>(first.bytes()));
    const std::vector<Tensor> y = w.products(ex, first, Weights::plain, DType::f32),
                              truth = reference.products(host, first, Weights::plain, DType::f32);
    const double bound = rows <= 16 ? tol::kF32Product : has_fp8_products(ex) ? tol::kF8Product : tol::kBf16Op;
    for (int64_t r = 0; r < rows; ++r) {
      const ConstTensorView found = y[0].view().row_range(r, r + 1), want = truth[0].view().row_range(r, r + 1);
      if (factor_of(r) == 0)
        for (int64_t o = 0; o < kOut; ++o) EXPECT_EQ(found.as<float>()[o], 0);
      else if (r == 4)
        for (int64_t o = 0; o < kOut; ++o) EXPECT_TRUE(std::isnan(found.as<float>()[o]));
      else
        EXPECT_LE(relative_error(found, want), bound) << "row " << r << " of " << rows;
    }
  }
}

TEST(FewRows, CudaARowHasTheBitsItHasAlone) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  rows_stand_alone(ex, DType::bf16, kCases[0], 2);
  for (const DType type : {DType::i8, DType::f8_e4m3, DType::f16})
    for (const int64_t rows : {2, 5, 16}) {
      rows_stand_alone(ex, type, kCases[0], rows);
      rows_stand_alone(ex, type, kCases[1], rows);
      if (type == DType::i8) rows_stand_alone(ex, type, {17408, {40}}, rows);  // in several k splits
    }
}

TEST(FewRows, CudaGivesTheSameBitsOnEveryRunAndOnThePathOfOlderHardware) {
  FEWBIT_NEEDS_GPU();
#ifdef FEWBIT_HAS_CUDA
  Exec ex = Exec::cuda(0), older = Exec::cuda(0);
  cuda::force_sm80_path(older, true);
  for (const DType type : kTypes) {
    const Case& c = kCases[3];
    const Weights w(ex, c, type), w_older(older, c, type);
    const Tensor x = random_normal(DType::bf16, {1, c.in}, 6);
    const std::vector<Tensor> first = w.products(ex, x, Weights::plain, DType::f32);
    for (int run = 0; run < 5; ++run) {
      const std::vector<Tensor> again =
          (run < 4 ? w : w_older).products(run < 4 ? ex : older, x, Weights::plain, DType::f32);
      for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first_difference(again[i], first[i]), "") << name_of(type);
    }
  }
#endif
}

}  // namespace
}  // namespace fewbit::test
