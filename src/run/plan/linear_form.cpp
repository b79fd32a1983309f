#include "src/run/plan/linear_form.h"

#include "formats/packing.h"
#include "kernels/grids/fp4_tiles.h"

namespace fewbit {
namespace {

using Kind = LinearForm::Kind;

// Whether x becomes codes of 8 bits. Of E2M1 no device multiplies codes: values of rounded inputs meet values of
// weights.
bool rounds_to_bytes(const QuantSpec& s) { return s.activations != ActQuant::none && s.grid != Grid::f4_e2m1; }

// Why a linear whose codes are bytes has no kernel of them; "" = it has.
std::string no_byte_kernel(const QuantSpec& s, int64_t in) {
  if (s.act_bits != 8 || s.turn != 0)
    return "inputs in int" + std::to_string(s.act_bits) + (s.turn ? ", turned," : "") +
           " have no product of codes: it runs dequantized, with its input rounded";
  if (s.bits == 8 && s.symmetric && s.groups(in) == 1 && in < 1 << 17) return "";
  return "products of bytes want 8 bits, symmetric, a scale per output or one of all, not " + s.str() +
         ": it runs dequantized" + (s.activations == ActQuant::none ? "" : ", with its input rounded");
}

// Why the device has no packed kernel for the others; "" = it has.
std::string no_kernel(bool on_cuda, const QuantSpec& s, int64_t out, int64_t in, bool act_order) {
  if (s.grid == Grid::f4_e2m1) return "FP4 weights are dequantized and multiplied densely";
  if (s.turn != 0) return "weights of a turned input are dequantized and multiplied densely";
  if (s.out_group != 1) return "scales shared by several outputs are multiplied densely";
  return on_cuda ? packing_marlin.refuses(s, out, in, act_order) : "";
}

// The values of the codes. Where the input is rounded to 8 bits they stay f32: one step of x then weighs more than a
// rounding of the weight to bf16, and a reference must not take other steps than the packed linear. 4-bit floats under
// powers of two have at most six bits with their scales, and are exact in bf16.
LinearForm dequantized(const QuantSpec& s, DType compute, std::string why) {
  return {.values = rounds_to_bytes(s) ? DType::f32 : compute, .input = compute, .why = std::move(why)};
}

}  // namespace

QuantSpec spec_on_device(bool on_cuda, const QuantSpec& spec) {
  QuantSpec s = spec;
  if (on_cuda && s.grid == Grid::integer && !rounds_to_bytes(s)) s.bits = s.bits <= 4 ? 4 : 8;
  return s;
}

LinearForm dense_form(DType compute) { return {.values = compute, .input = compute}; }

LinearForm form_of(bool on_cuda, const QuantSpec& s, int64_t out, int64_t in, bool act_order, DType compute,
                   bool expert) {
  if (compute != DType::bf16) return dequantized(s, compute, "float32 compute multiplies densely");
  if (expert && on_cuda && s == kMxfp4 && out % 16 == 0 && in % s.group == 0) return {.kind = Kind::fp4};
  if (rounds_to_bytes(s) || s.grid == Grid::f8_e4m3) {
    if (std::string why = no_byte_kernel(s, in); !why.empty()) return dequantized(s, compute, std::move(why));
    const DType codes = s.grid == Grid::integer ? DType::i8 : DType::f8_e4m3;
    return {.kind = Kind::bytes, .input = rounds_to_bytes(s) ? codes : DType::f16};
  }
  if (std::string why = no_kernel(on_cuda, s, out, in, act_order); !why.empty())
    return dequantized(s, compute, std::move(why));
  return {.kind = on_cuda ? Kind::marlin : Kind::rows};
}

int64_t bytes_of(const LinearForm& form, const QuantSpec& s, int64_t out, int64_t in, bool act_order, bool bias) {
  switch (form.kind) {
    case Kind::dense:
      return (out * in + (bias ? out : 0)) * bytes_of(form.values);
    case Kind::marlin:
      return packed_bytes(packing_marlin, s, out, in, false) + (bias ? out * bytes_of(DType::bf16) : 0);
    case Kind::rows:
      return out * (s.bits <= 4 ? (in + 1) / 2 : in) + out * s.groups(in) * (4 + (s.symmetric ? 0 : 1)) +
             (act_order ? in * 4 : 0) + (bias ? out * bytes_of(DType::bf16) : 0);
    case Kind::bytes:
      return out * in + out * 4 + (bias ? out * bytes_of(DType::bf16) : 0);
    case Kind::fp4:
      return out / kFp4TileOuts * fp4_tile_words(in) * 4 + (bias ? out * bytes_of(DType::bf16) : 0);
  }
  return 0;
}

}  // namespace fewbit
