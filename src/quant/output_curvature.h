#pragma once
// OutputCurvature: how much the model's words mind errors of a linear's outputs together. Beside the Gram matrix of the
// inputs it makes a method minimise tr(H (W - Q) G (W - Q)^T), the other side of the matrix (YAQA: Tseng et al., 2025,
// arXiv 2505.22988; GuidedQuant: Kim et al., 2025).
#include <algorithm>
#include <vector>

#include "src/core/tensor.h"

namespace fewbit {

// Rows that are coupled at most: a matrix of so many squared is 64 MiB. Wider linears have their rows dealt to sets in
// turn, each with a matrix of its own.
inline constexpr int64_t kCoupledRows = 4096;

struct OutputCurvature {
  // sum over tokens of g g^T, with g the gradient at the outputs of a set: row r of the linear is row r / sets of set
  // r % sets. [rows of the set, the same] f32 on the device, both halves.
  std::vector<Tensor> sets{};
  int64_t tokens = 0;

  // What is off the diagonal is a noisy sum, and is taken for so much of itself; the diagonal weighs no row against
  // itself. 0.7 was best of 32,768 tokens of a small model, 0.9 of 131,072.
  double trusted() const { return static_cast<double>(tokens) / static_cast<double>(tokens + 14000); }

  static int64_t sets_of(int64_t out) { return (out + kCoupledRows - 1) / kCoupledRows; }
  static int64_t rows_of(int64_t out, int64_t set) { return (out - set + sets_of(out) - 1) / sets_of(out); }
  static int64_t bytes(int64_t out) {
    int64_t all = 0;
    for (int64_t s = 0; s < sets_of(out); ++s) all += 4 * rows_of(out, s) * rows_of(out, s);
    return all;
  }
};

}  // namespace fewbit
