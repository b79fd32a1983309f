// Which layout a packed linear gets on a device, and that every layout gives the product of its values.
#include "src/run/linear.h"

#include "kernels/products/bytes/fp8_gemm.h"
#include "src/core/half.h"
#include "src/core/rng.h"
#include "src/run/plan/linear_form.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

QuantizedLinear random_linear(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  QuantizedLinear q;
  q.spec = spec;
  Rng rng(static_cast<uint64_t>(spec.bits), "linear");
  const bool fp8 = spec.grid == Grid::f8_e4m3;
  q.codes = Tensor::host(DType::u8, {out, in});
  for (int64_t i = 0; i < out * in; ++i)
    q.codes.as<uint8_t>()[i] = fp8 ? static_cast<uint8_t>(rng.below(2) * 128 + rng.below(120))
                                   : static_cast<uint8_t>(rng.below(uint64_t{1} << spec.bits));
  q.scales = Tensor::host(DType::f32, {(out + spec.out_group - 1) / spec.out_group, spec.groups(in)});
  for (int64_t i = 0; i < q.scales.numel(); ++i)
    q.scales.as<float>()[i] = round_to_bf16(static_cast<float>(0.01 + 0.01 * rng.uniform()));
  if (!spec.symmetric && !fp8) {
    q.zeros = Tensor::host(DType::u8, {out, spec.groups(in)});
    for (int64_t i = 0; i < q.zeros->numel(); ++i)
      q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(uint64_t{1} << spec.bits));
  }
  if (act_order) {
    q.group_of = Tensor::host(DType::i32, {in});
    for (int64_t i = 0; i < in; ++i) q.group_of->as<int32_t>()[i] = static_cast<int32_t>((i * 5) % spec.groups(in));
  }
  return q;
}

// The values of x as the linear rounds it, [rows, in] f32 in host memory.
Tensor rounded(const Tensor& x, const std::optional<RowQuant>& input) {
  Tensor y = to_f32(x);
  Exec host = Exec::cpu();
  if (input) round_rows(host, y, *input, y);
  return y;
}

void same_product(Exec& ex, const QuantizedLinear& q, DType dtype, const std::string& expected_kind) {
  std::string note = "unset";
  const Tensor bias = random_normal(DType::f16, {q.out()}, 3);
  const Linear linear = make_linear(ex, q, bias, dtype, &note);
  EXPECT_EQ(kind_of(linear), expected_kind) << q.spec.str();
  const bool narrower_than_asked = expected_kind == "dense" || (expected_kind == "fp8" && !has_fp8_products(ex));
  EXPECT_EQ(note.empty(), !narrower_than_asked) << note;
  const Linear dense = make_dense(ex, dequantize_reference(q), bias, DType::f32);
  for (const int64_t rows : {1, 5, 40}) {
    const Tensor x = random_normal(dtype, {rows, q.in()}, 1);
    const Tensor y = poisoned(ex, dtype, {rows, q.out()}), truth = poisoned(ex, DType::f32, {rows, q.out()});
    apply(ex, linear, ex.to_device(x), y);
    apply(ex, dense, ex.to_device(rounded(x, input_quant(q.spec, q.input_scale))), truth);
    EXPECT_LE(relative_error(ex.to_host(y), ex.to_host(truth)), dtype == DType::f32 ? tol::kF32Product : tol::kBf16Op)
        << q.spec.str() << " rows " << rows;
  }
  const bool act_order = q.group_of.has_value();
  const QuantSpec there = spec_on_device(ex.on_cuda(), q.spec);
  const LinearForm form = form_of(ex.on_cuda(), there, q.out(), q.in(), act_order, dtype);
  EXPECT_EQ(bytes_of(form, there, q.out(), q.in(), act_order, true), weight_bytes(linear)) << q.spec.str();
}

void every_layout(Exec& ex) {
  const bool cuda = ex.on_cuda();
  for (const bool symmetric : {true, false})
    for (const int bits : {2, 3, 4, 5, 8}) {
      const QuantSpec spec{.bits = bits, .group = 64, .symmetric = symmetric};
      const std::string row = "row" + std::to_string(bits), marlin = bits <= 4 ? "marlin4" : "marlin8";
      same_product(ex, random_linear(spec, 128, 256, false), DType::bf16, cuda ? marlin : row);
      same_product(ex, random_linear(spec, 128, 256, false), DType::f32, "dense");
      same_product(ex, random_linear(spec, 128, 256, true), DType::bf16, cuda ? "dense" : row);
      same_product(ex, random_linear(spec, 45, 192, false), DType::bf16,
                   cuda ? "dense" : row);  // no Marlin shape
    }
  for (const ActQuant activations : {ActQuant::token, ActQuant::tensor})
    for (const int64_t in : {100, 256}) {  // the first is no shape of the GPU library's
      const QuantSpec w8a8{.bits = 8, .group = -1, .scale_dtype = DType::f32, .activations = activations};
      QuantizedLinear q = random_linear(w8a8, 48, in, false);
      if (activations == ActQuant::tensor) q.input_scale = 0.02f;
      same_product(ex, q, DType::bf16, "int8");
      same_product(ex, q, DType::f32, "dense");
    }
  QuantizedLinear grouped = random_linear({.bits = 8, .group = 64, .activations = ActQuant::token}, 64, 128, false);
  same_product(ex, grouped, DType::bf16, "dense");
  for (const ActQuant activations : {ActQuant::token, ActQuant::tensor})
    for (const int64_t out_group : {1, 48}) {
      const QuantSpec spec{.grid = Grid::f8_e4m3,
                           .bits = 8,
                           .group = -1,
                           .scale_dtype = DType::f32,
                           .out_group = out_group,
                           .activations = activations};
      QuantizedLinear q = random_linear(spec, 48, 256, false);
      if (activations == ActQuant::tensor) q.input_scale = 0.01f;
      same_product(ex, q, DType::bf16, "fp8");
      same_product(ex, q, DType::f32, "dense");
    }
  const QuantSpec block{.grid = Grid::f8_e4m3,
                        .bits = 8,
                        .group = 128,
                        .scale_dtype = DType::f32,
                        .out_group = 128,
                        .activations = ActQuant::token};
  same_product(ex, random_linear(block, 200, 256, false), DType::bf16, "dense");
  same_product(ex, random_linear(block, 200, 128, false), DType::bf16, "fp8");  // one block of inputs is their row
  for (const int64_t out_group : {1, 48})                                       // weight-only
    for (const int64_t in : {100, 256, 1024}) {
      const QuantSpec fp8{
          .grid = Grid::f8_e4m3,
          .bits = 8,
          .group = -1,
          .scale_dtype = DType::f32,
          .out_group = out_group,
      };
      same_product(ex, random_linear(fp8, 96, in, false), DType::bf16, "fp8a16");
      same_product(ex, random_linear(fp8, 96, in, false), DType::f32, "dense");
    }
}

TEST(Linear, EveryLayoutGivesTheProductOfItsValues) {
  Exec ex = Exec::cpu();
  every_layout(ex);
}
TEST(Linear, CudaEveryLayoutGivesTheProductOfItsValues) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  every_layout(ex);
}

}  // namespace
}  // namespace fewbit::test
