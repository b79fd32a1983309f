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
};

// How the input of a linear is quantized when it runs, to the type of its weight's grid (int8 or E4M3);
// `none` keeps it in bf16 (weight-only).
enum class ActQuant : uint8_t {
  none,
  token,   // dynamic: one scale per row of x
  tensor,  // static: QuantizedLinear::input_scale, from calibration
};

// Prints and parses as "int4 g128 sym", "int8 gch sym", "fp8 gch". `group` = input features that share a
// scale; -1 = the whole row.
struct QuantSpec {
  Grid grid = Grid::integer;
  int bits = 4;
  int64_t group = 128;
  bool symmetric = true;
  DType scale_dtype = DType::f16;  // scales are rounded to this BEFORE codes are computed
  int64_t out_group = 1;           // outputs that share a scale: 1, or 128 for block FP8
  ActQuant activations = ActQuant::none;

  bool operator==(const QuantSpec&) const = default;
  int64_t group_size(int64_t in) const { return group == -1 ? in : group; }
  int64_t groups(int64_t in) const { return (in + group_size(in) - 1) / group_size(in); }
  int mid_code() const { return 1 << (bits - 1); }  // the zero of a symmetric integer grid
  int max_code() const { return (1 << bits) - 1; }
  std::string str() const;
  // Bits per weight with scales and zeros counted.
  double bits_per_weight(int64_t in) const;
};

// value(o, i) = (codes[o, i] - zeros[o, g]) * scales[o, g],   g = group_of ? group_of[i] : i / group
//   symmetric: the zero is 2^(bits-1). Float grids: decode(code) takes the place of code - zero.
// Columns stay in checkpoint order. Scales may be negative.
struct QuantizedLinear {
  QuantSpec spec{};
  Tensor codes{};                       // [out, in]        u8
  Tensor scales{};                      // [out/out_group, G] f32, representable in spec.scale_dtype
  std::optional<Tensor> zeros{};        // [out, G]         u8; absent when symmetric
  std::optional<Tensor> group_of{};     // [in]             i32; absent when groups are consecutive
  std::optional<float> input_scale{};   // static activation scale
  std::optional<float> global_scale{};  // second-level scale (NVFP4)

  int64_t out() const { return codes.shape()[0]; }
  int64_t in() const { return codes.shape()[1]; }
  int64_t groups() const { return scales.shape()[1]; }
};

// Stops the process when an invariant of the neutral form is broken: shapes, codes in range and numbers,
// scales finite and representable, group_of in range, a static scale exactly where activations are static.
// For readers of files use check(), which says what is wrong instead.
void validate(const QuantizedLinear& q);
std::string check(const QuantizedLinear& q);  // "" = sound

// The readable truth: every value in f32, [out, in].
Tensor dequantize_reference(const QuantizedLinear& q);

// Rounds a scale to its storage type, keeping sign; never returns 0 or a non-finite value for a finite input
// (|s| is floored at the storage type's least normal value).
float representable_scale(float s, DType dtype);

// Hash of codes, scales, zeros, group_of and input_scale: what `evaluate verify` compares.
std::string content_hash(const QuantizedLinear& q);

QuantizedLinear clone(const QuantizedLinear& q);

}  // namespace fewbit
