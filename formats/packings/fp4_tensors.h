#pragma once
// What the packings of 4-bit floats share (docs/formats/fp4.md): two E2M1 codes a byte, the even input in the
// low nibble, and scales of one byte per group of inputs. They differ in names, and in whether the global scale
// is stored as it is or as one over it. Internal to formats/packings.
//
//   codes   U8 [N, K/2] (DeepSeek V4: I8)
//   scales  F8_E4M3 [N, K/16] or U8 (E8M0, whose own type is read too) [N, K/32], row-major
//   global  F32, one value        input  F32, one value, where activations are static
#include "formats/packing.h"

namespace fewbit::fp4 {

enum class Stored : uint8_t { multiplier, reciprocal };

struct Layout {
  QuantSpec spec;        // the one grid it holds; activations are free
  ActQuant activations;  // besides none
  const char* codes;
  const char* scales;
  const char* global = nullptr;  // without: one level of scales
  const char* input = nullptr;
  Stored stored = Stored::multiplier;  // of global and input
  int single_rank = 1;                 // their shape: [1] or, 0, []
  DType codes_type = DType::u8;
  // E8M0 goes by U8, unless said otherwise: other people's loaders do not know its name.
  DType scales_type = spec.scale_dtype == DType::f8_e8m0 ? DType::u8 : spec.scale_dtype;
};

std::string refuses(const Layout&, const QuantSpec&, int64_t out, int64_t in, bool act_order);
std::vector<TensorPlan> tensors(const Layout&, const QuantSpec&, int64_t out, int64_t in);
PackedLinear pack(const Layout&, std::string_view linear, const QuantizedLinear&);
QuantizedLinear unpack(const Layout&, std::string_view linear, const QuantSpec&, Shape out_in, const TensorSource&);

template <const Layout& kLayout>
constexpr Packing packing_of(std::string_view name, std::string_view summary) {
  return {
      .name = name,
      .summary = summary,
      .refuses = [](const QuantSpec& spec, int64_t out, int64_t in,
                    bool act_order) { return refuses(kLayout, spec, out, in, act_order); },
      .tensors = [](const QuantSpec& spec, int64_t out, int64_t in, bool) { return tensors(kLayout, spec, out, in); },
      .pack = [](std::string_view linear, const QuantizedLinear& q) { return pack(kLayout, linear, q); },
      .unpack =
          [](std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in, const TensorSource& source) {
            return unpack(kLayout, linear, spec, {out, in}, source);
          },
  };
}

}  // namespace fewbit::fp4
