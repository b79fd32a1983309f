// Packing into the Marlin layout on both devices, against the packing of formats/.
#include "kernels/products/marlin/marlin_pack.h"

#include "formats/packing.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// The bytes that the packing writes, made some outputs at a time.
FEWBIT_DEVICE_TEST(MarlinPack, GivesTheBytesOfThePacking) {
  constexpr int64_t kOut = 192;
  for (const int bits : {4, 8})
    for (const auto& [group, in] : {std::pair<int64_t, int64_t>{32, 256}, {128, 256}, {-1, 48}}) {
      QuantizedLinear q{.spec = {.bits = bits, .group = group}};
      q.codes = Tensor::host(DType::u8, {kOut, in});
      Rng rng(3, "codes");
      for (int64_t i = 0; i < q.codes.numel(); ++i)
        q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(uint64_t{1} << bits));
      q.scales = Tensor::host(DType::f32, {kOut, q.spec.groups(in)});
      for (int64_t i = 0; i < q.scales.numel(); ++i)
        q.scales.as<float>()[i] = round_to_f16(static_cast<float>(0.01 * rng.uniform() - 0.003));
      const PackedLinear want = packing_marlin.pack("w", q);
      const Tensor b = poisoned(ex, DType::i32, want.tensors[0].tensor.shape());
      const Tensor s = poisoned(ex, DType::f16, want.tensors[1].tensor.shape());
      for (const auto& [first, end] : {std::pair<int64_t, int64_t>{128, 192}, {0, 128}})
        marlin_pack(ex,
                    {.codes = ex.to_device(q.codes.view().row_range(first, end)),
                     .scales = ex.to_device(q.scales.view().row_range(first, end)),
                     .bits = bits,
                     .first = first},
                    b, s);
      EXPECT_EQ(first_difference(ex.to_host(b), want.tensors[0].tensor), "") << bits << " bits, group " << group;
      EXPECT_EQ(first_difference(ex.to_host(s), want.tensors[1].tensor), "") << bits << " bits, group " << group;
    }
}

}  // namespace
}  // namespace fewbit::test
