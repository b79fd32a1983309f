#pragma once
// Routers stay in their float type, but what reaches them changes: the quantized stream's states are not those that the
// router was trained on. Its weight W is moved so that it makes the unquantized stream's logits of the quantized stream's
// states (kernels/factor.h):
//   W' = W + W (C - G)(G + lambda I)^-1     G = sum x x^T, C = sum x_full x^T
// fitted on seven eighths of the tokens and taken only if it is nearer than W on the last eighth, which it never saw.
#include "kernels/exec.h"

namespace fewbit {

// Fewer tokens than this per input feature say too little about a matrix of its square.
inline constexpr int64_t kRouterTokensPerFeature = 4;

struct RouterFit {
  Tensor weight{};  // [experts, hidden] on the device, in the stored type; empty: W stays
  // Relative error of the logits on the tokens held out, ||X_full W^T - X V^T|| / ||X_full W^T||, for V = W and for what is
  // used; 0 without enough tokens.
  double error_before = 0, error = 0;
};

// stored [experts, hidden]: W in the checkpoint's float type, on the device. x, x_full [tokens, hidden] f32 | bf16: the
// router's input in the quantized stream and in the unquantized one. damp: relative to the mean of diag G.
RouterFit fit_router(Exec&, ConstTensorView stored, ConstTensorView x, ConstTensorView x_full, float damp);

}  // namespace fewbit
