// --acts int8: packed integers with inputs rounded per token and 32 columns, and what is refused.
#include "src/run/gguf/int8_inputs.h"

#include "kernels/products/bytes/quantize_rows.h"
#include "src/run/runner.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

// Random codes about their zeros.
QuantizedLinear random_codes(int bits, int64_t group, bool symmetric, int64_t out, int64_t in) {
  QuantizedLinear q;
  q.spec = {.bits = bits, .group = static_cast<int>(group), .symmetric = symmetric};
  const int64_t groups = q.spec.groups(in);
  q.codes = Tensor::host(DType::u8, {out, in});
  q.scales = Tensor::host(DType::f32, {out, groups});
  Rng rng(static_cast<uint64_t>(bits + group), "codes");
  for (int64_t i = 0; i < out * in; ++i) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(1u << bits));
  for (int64_t i = 0; i < out * groups; ++i) q.scales.as<float>()[i] = static_cast<float>(rng.uniform() + 0.5) / 100;
  if (symmetric) return q;
  q.zeros = Tensor::host(DType::u8, {out, groups});
  for (int64_t i = 0; i < out * groups; ++i) q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(1u << bits));
  return q;
}

TEST(Int8Inputs, PackedIntegersMeetTheRoundedRows) {
  Exec ex = Exec::cpu();
  const int64_t out = 45, in = 512, rows = 5;
  const Tensor x = random_normal(DType::bf16, {rows, in}, 1), rounded = poisoned(ex, DType::f32, {rows, in});
  round_rows(ex, to_f32(x), {.group = 32}, rounded);
  for (const int bits : {2, 3, 4, 5, 8})
    for (const int64_t group : {32, 64, 128, -1})
      for (const bool symmetric : {true, false}) {
        const QuantizedLinear q = random_codes(bits, group, symmetric, out, in);
        const Linear packed = make_linear(ex, q, {}, {.acts = ActsType::int8}, nullptr);
        EXPECT_EQ(kind_of(packed), bits <= 4 ? "row4 x int8" : "row8 x int8");
        const Linear dense = make_dense(ex, dequantize_reference(q), {}, DType::f32);
        const Tensor y = poisoned(ex, DType::f32, {rows, out}), truth = poisoned(ex, DType::f32, {rows, out});
        apply(ex, packed, x, y);
        apply(ex, dense, rounded, truth);
        EXPECT_LE(relative_error(y, truth), tol::kF32Product) << bits << " bits, groups of " << group;
      }
}

TEST(Int8Inputs, StripsTakeColumnsInActOrder) {
  Exec ex = Exec::cpu();
  const int64_t out = 45, in = 512, rows = 5;
  const Tensor x = random_normal(DType::bf16, {rows, in}, 1);
  for (const int bits : {3, 4, 8})
    for (const int64_t group : {32, 128}) {
      QuantizedLinear q = random_codes(bits, group, false, out, in);
      q.group_of = Tensor::host(DType::i32, {in});
      for (int64_t i = 0; i < in; ++i) q.group_of->as<int32_t>()[i] = static_cast<int32_t>(i * 5 % q.groups());
      const Tensor y = poisoned(ex, DType::f32, {rows, out}), truth = poisoned(ex, DType::f32, {rows, out});
      apply(ex, strip_linear(ex, q, {}, ActsType::bf16), x, y);
      apply(ex, make_dense(ex, dequantize_reference(q), {}, DType::f32), to_f32(x), truth);
      EXPECT_LE(relative_error(y, truth), tol::kF32Product) << bits << " bits, groups of " << group;
    }
}

TEST(Int8Inputs, AreRefusedWhereThereIsNoProduct) {
  EXPECT_EQ(refuses_int8_inputs({.bits = 4, .group = 128}, 512, false), "");
  EXPECT_NE(refuses_int8_inputs({.bits = 4, .group = 128}, 512, true), "");
  EXPECT_NE(refuses_int8_inputs({.bits = 4, .group = 16}, 512, false), "");
  EXPECT_NE(refuses_int8_inputs({.bits = 4, .group = 128}, 576, false), "");
  Exec ex = Exec::cpu();
  const Checkpoint floats = Checkpoint::open(demo());
  EXPECT_THROW(check_acts(ex, floats, {.acts = ActsType::int8}), Error);
  EXPECT_THROW(check_acts(ex, floats, {.dtype = DType::f32, .acts = ActsType::int8}), Error);
  EXPECT_THROW(check_acts(ex, floats, {.head = HeadType::fp8, .acts = ActsType::int8}), Error);
  EXPECT_NO_THROW(check_acts(ex, floats, {.head = HeadType::int4, .acts = ActsType::int8}));
  EXPECT_NO_THROW(check_acts(ex, floats, {}));
}

}  // namespace
}  // namespace fewbit::test
