#pragma once
// The neutral form: what a method produces, what a packing packs, what the runner can dequantize. Nothing is
// packed in it: one byte a code. Zero-point conventions, offsets by one and nibble orders belong to packings.
#include <optional>
#include <string>
#include <string_view>

#include "src/core/tensor.h"

namespace fewbit {

enum class Grid : uint8_t {
  integer,  // value = (code - zero) * scale
  f8_e4m3,  // value = decode(code) * scale
  f4_e2m1,  // the same with codes of 4 bits, sign and three bits of magnitude (src/core/half.h)
};

// How the input of a linear is quantized when it runs, to the type of its weight's grid (int8, E4M3 or E2M1);
// `none` keeps it in bf16 (weight-only). E2M1 has scales for groups of inputs as its weight has them.
enum class ActQuant : uint8_t {
  none,
  token,   // dynamic: one scale per row of x; E2M1: per row and group
  tensor,  // static: QuantizedLinear::input_scale, from calibration; E2M1: above dynamic scales of groups
};

// Prints and parses as "int4 g128 sym", "int8 gch sym", "fp8 gch", "nvfp4", "mxfp4". `group` = input features
// that share a scale; -1 = the whole row.
struct QuantSpec {
  Grid grid = Grid::integer;
  int bits = 4;
  int64_t group = 128;
  bool symmetric = true;
  DType scale_dtype = DType::f16;  // scales are rounded to this BEFORE codes are computed
  int64_t out_group = 1;           // outputs that share a scale: 1, or 128 for block FP8
  ActQuant activations = ActQuant::none;
  // Of dynamic int4 inputs: the share of a row's largest magnitude that the levels reach, in hundredths; what is above
  // saturates.
  uint8_t act_clip = 100;
  int act_bits = 8;  // of dynamic inputs on the integer grid: 8 or 4, whatever the weights have
  // > 0: orthonormal Hadamard matrices of so many inputs (a power of two that divides them) turn the input before it is
  // rounded, and the weights along it before they are: codes are those of W H, met by codes of x H.
  int64_t turn = 0;

  bool operator==(const QuantSpec&) const = default;
  bool int4_inputs() const { return activations == ActQuant::token && grid == Grid::integer && act_bits == 4; }
  int64_t group_size(int64_t in) const { return group == -1 ? in : group; }
  int64_t groups(int64_t in) const { return (in + group_size(in) - 1) / group_size(in); }
  int mid_code() const { return 1 << (bits - 1); }  // the zero of a symmetric integer grid
  int max_code() const { return (1 << bits) - 1; }
  // Scales too narrow to stand alone: QuantizedLinear::global_scale multiplies them all.
  bool two_level() const { return scale_dtype == DType::f8_e4m3; }
  std::string str() const;
  // Bits per weight with scales and zeros counted.
  double bits_per_weight(int64_t in) const;
};

// The two grids of 4-bit floats: E4M3 scales per 16 inputs under a global scale, and powers of two (E8M0) per
// 32 inputs.
inline constexpr QuantSpec kNvfp4{
    .grid = Grid::f4_e2m1,
    .bits = 4,
    .group = 16,
    .scale_dtype = DType::f8_e4m3,
};
inline constexpr QuantSpec kMxfp4{
    .grid = Grid::f4_e2m1,
    .bits = 4,
    .group = 32,
    .scale_dtype = DType::f8_e8m0,
};

// value(o, i) = (codes[o, i] - zeros[o, g]) * scales[o, g],   g = group_of ? group_of[i] : i / group
//   With spec.turn the values are these times H along every row: what an input that is not turned meets.
//   symmetric: the zero is 2^(bits-1). Float grids: decode(code) takes the place of code - zero. With two
//   levels of scales, scales[o, g] * global_scale takes the place of scales[o, g].
// Columns stay in checkpoint order. Scales may be negative, unless they are E4M3 or E8M0.
struct QuantizedLinear {
  QuantSpec spec{};
  Tensor codes{};                    // [out, in]        u8
  Tensor scales{};                   // [out/out_group, G] f32, representable in spec.scale_dtype
  std::optional<Tensor> zeros{};     // [out, G]         u8; absent when symmetric
  std::optional<Tensor> group_of{};  // [in]             i32; absent when groups are consecutive
  // Multipliers. Double, so that a file's f32 comes back to the bit whether it holds the scale or, as some
  // formats do, one over it.
  std::optional<double> input_scale{};   // static activations
  std::optional<double> global_scale{};  // exactly where spec.two_level()

  int64_t out() const { return codes.shape()[0]; }
  int64_t in() const { return codes.shape()[1]; }
  int64_t groups() const { return scales.shape()[1]; }
};

// Stops the process when an invariant of the neutral form is broken: shapes, codes in range and numbers,
// scales finite and representable, group_of in range, a static scale exactly where activations are static, a
// global one exactly where there are two levels.
// For readers of files use check(), which says what is wrong instead.
void validate(const QuantizedLinear& q);
std::string check(const QuantizedLinear& q);  // "" = sound

// The readable truth: every value in f32, [out, in].
Tensor dequantize_reference(const QuantizedLinear& q);

// Rounds a scale to its storage type, keeping sign; never returns 0 or a non-finite value for a finite input
// (|s| is floored at the storage type's least normal value). E4M3 scales have no sign and go down to their
// least subnormal, 2^-9; E8M0 is the nearest power of two at or above |s| / sqrt(2).
float representable_scale(float s, DType dtype);

// The scale above NVFP4's groups: the least power of two with which the scale of a group that reaches absmax is still
// an E4M3 number; 1 for absmax = 0. A power of two, so that formats that store it and formats that store one over it
// hold the same, and codes times scales are bf16 values.
double nvfp4_global_scale(float absmax);

// Hash of codes, scales, zeros, group_of, input_scale and global_scale: what `evaluate verify` compares.
std::string content_hash(const QuantizedLinear& q);

QuantizedLinear clone(const QuantizedLinear& q);

// The columns of a linear in act-order, [in] i32, so that those of a group stand side by side in their own order.
// Nothing where q is not in act-order or a group has another number of columns than spec.group.
std::optional<Tensor> group_order(const QuantizedLinear& q);
// The same linear with its columns in that order, and no group_of.
struct OrderedLinear {
  QuantizedLinear linear{};
  Tensor order{};
};
std::optional<OrderedLinear> in_group_order(const QuantizedLinear& q);

}  // namespace fewbit
