// Weights read in place are those that unpack() gives.
#include "formats/stored_bytes.h"

#include <gtest/gtest.h>

#include "src/core/rng.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

QuantizedLinear random_bytes(const QuantSpec& spec, int64_t out, int64_t in) {
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host(DType::u8, {out, in});
  const Rng rng(1, "codes");
  for (int64_t i = 0; i < out * in; ++i)
    q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.at(static_cast<uint64_t>(i)) % 120);
  q.scales = Tensor::host(DType::f32, {(out + spec.out_group - 1) / spec.out_group, 1});
  for (int64_t i = 0; i < q.scales.numel(); ++i) q.scales.as<float>()[i] = 0.25f * static_cast<float>(i + 1);
  if (spec.activations == ActQuant::tensor) q.input_scale = 0.5;
  return q;
}

TEST(StoredBytes, AreTheCodesAndScalesOfUnpack) {
  const int64_t out = 6, in = 32;
  for (const auto& [packing, grid, flip] :
       {std::tuple{&packing_ct_float, Grid::f8_e4m3, 0}, std::tuple{&packing_fp8, Grid::f8_e4m3, 0},
        std::tuple{&packing_ct_int, Grid::integer, 0x80}})
    for (const ActQuant activations : {ActQuant::token, ActQuant::tensor})
      for (const int64_t out_group : {int64_t{1}, out}) {
        const QuantSpec spec{.grid = grid,
                             .bits = 8,
                             .group = -1,
                             .scale_dtype = DType::f32,
                             .out_group = out_group,
                             .activations = activations};
        const PackedLinear packed = packing->pack("w", random_bytes(spec, out, in));
        const TensorSource source = [&](const std::string& name) -> ConstTensorView {
          for (const NamedTensor& t : packed.tensors)
            if (t.name == name) return t.tensor;
          return {};
        };
        const auto found = stored_bytes(*packing, "w", spec, out, in, source);
        const QuantizedLinear want = packing->unpack("w", spec, out, in, source);
        ASSERT_TRUE(found) << packing->name;
        EXPECT_EQ(found->codes.data, source("w.weight").data);
        for (int64_t i = 0; i < out * in; ++i)
          EXPECT_EQ(static_cast<const uint8_t*>(found->codes.data)[i] ^ flip, want.codes.as<uint8_t>()[i]);
        EXPECT_EQ(first_difference(found->scales, want.scales), "");
        EXPECT_EQ(found->input_scale, want.input_scale);
      }
}

TEST(StoredBytes, NothingWhereWordsHoldSeveralCodes) {
  const QuantSpec spec{.bits = 4, .group = 128};
  EXPECT_FALSE(stored_bytes(packing_marlin, "w", spec, 64, 128, [](const std::string&) { return ConstTensorView{}; }));
}

}  // namespace
}  // namespace fewbit::test
