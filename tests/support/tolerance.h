#pragma once
// The one home of test tolerances. All are relative: ||a - b|| / ||b||.
namespace fewbit::tol {

inline constexpr double kExact = 0;
inline constexpr double kF32Op = 2e-6;       // an f32 op against a double reference
inline constexpr double kF32Product = 2e-5;  // a long f32 product
inline constexpr double kBf16Op = 6e-3;      // one bf16 rounding of inputs and output
inline constexpr double kLogitsF32 = 1e-4;   // whole model, float32, against the reference implementation
inline constexpr double kLogitsBf16 = 2e-2;  // whole model, bf16

inline constexpr double kPublishedError = 1e-2;  // output errors that a published implementation reports
inline constexpr double kLossIdentity = 1e-3;    // sum of e^2 of an f32 column loop against the trace in f64

}  // namespace fewbit::tol
