#pragma once
// InputStats: what calibration saw at the input of one Linears op. Raw sums and counts, never averages, so
// that they merge by addition.
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/products/bytes/quantize_rows.h"
#include "src/core/quantized_linear.h"

namespace fewbit {

enum class Needs : uint8_t {
  nothing = 0,
  gram = 1,       // sum over tokens of x x^T of the quantized stream
  cross = 2,      // sum over tokens of x_full x_quantized^T; with gram it gives the shift of targets
  columns = 4,    // ActivationStats of the block before any of its linears is quantized
  range = 8,      // the largest magnitude of the input, for a static scale
  residual = 16,  // InputStats::residual, where the outputs are added to the residual stream
};
constexpr Needs operator|(Needs a, Needs b) { return static_cast<Needs>(static_cast<int>(a) | static_cast<int>(b)); }
constexpr Needs without(Needs set, Needs bits) {
  return static_cast<Needs>(static_cast<int>(set) & ~static_cast<int>(bits));
}
constexpr bool has(Needs set, Needs bit) { return (static_cast<int>(set) & static_cast<int>(bit)) != 0; }

// Tokens of the sums that only weigh inputs and measure outputs; those by which a method solves are of all tokens. With
// four times as many the KL of `fp8 acts=tensor` on a small model was the same to a percent, either way.
inline constexpr int64_t kWeighingTokens = 32768;

// Share of the residual stream's error that a linear in front of it is to make good (InputStats::residual). Blocks
// behind see that error with the inputs of their own, and make good what they can: on two small models 0.5 and 0.75
// were alike, all of it gained half as much.
inline constexpr float kResidualShare = 0.6f;

// Rows of an input as calibration shows them; data == nullptr where there are none.
struct InputRows {
  ConstTensorView x{};      // [n, in] of the quantized stream
  ConstTensorView full{};   // [n, in] of the unquantized one
  ConstTensorView error{};  // [n, out]: what the residual stream behind the linear lacks of the unquantized one
};

// The factor R of the damped Gram matrix (kernels/quantize/factor.h). It belongs to the input, so linears that share
// an input share it; `key` says which column order and damping it was made for.
struct FactorCache {
  std::string key{};
  Tensor r{};  // [in, in] f32, in processing order
  bool ok = false;
};

// The same of the matrix M that shifts the targets of linears that share an input (kernels/quantize/factor.h).
struct ShiftCache {
  std::optional<float> lambda{};  // that it was made for
  Tensor m{};                     // [in, in] f32; empty where the system could not be factored
};

// How the linears that share an input round it when they run.
struct InputRounding {
  ActQuant activations = ActQuant::none;
  RowQuant rows{};         // its static scale is that of the statistics
  float percentile = 100;  // of |x| that a static scale reaches; what is above saturates
  bool operator==(const InputRounding&) const = default;
};
InputRounding rounding_of(const QuantSpec&, float percentile = 100);

// The sums are those of the input that the linears multiply: rounded to 8 bits where they round it.
struct InputStats {
  int64_t tokens = 0;    // of the sums
  int64_t borrowed = 0;  // of them lent by the layer to an expert that saw too few (experts.h)
  Tensor gram{};         // [in, in] f32 on the device
  Tensor cross{};        // [in, in] f32; empty where not needed
  // [out, in] f32: sum over tokens of e x_quantized^T, with e the share of the residual stream's error that the outputs
  // of the input's one linear are to make good; empty where they are not added to that stream.
  Tensor residual{};
  float input_scale = 0;         // of static activations
  float input_reach = 1;         // share of the largest |x| that input_scale reaches; what is above saturates
  Tensor sample{};               // [tokens <= kSampleTokens, in] of the input before it is rounded; else empty
  mutable FactorCache factor{};  // filled by the first method that needs it
  mutable ShiftCache shift{};    // the same
};

// What a transform knows of an input: the states that enter the block run through its original weights.
struct ActivationStats {
  InputStats input{};  // cross is empty
  Tensor absmax{};     // [in] f32: largest |x_j|
  Tensor abssum{};     // [in] f64: sum over tokens of |x_j|
  Tensor sample{};     // some of its tokens, [n, in] of the compute dtype
};

}  // namespace fewbit
