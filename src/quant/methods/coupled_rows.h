#pragma once
// CoupledRows: a linear's rows in the order in which a method codes them where errors of its outputs matter together
// (output_curvature.h). Rows go in steps; the targets of a step's rows take back what the errors of the rows before
// them cost the model, as far as these rows can. That is error feedback on the other side of the matrix: with
// H = R R^T, R upper triangular,
//   tr(H E G E^T) = sum over rows i of the squared length under G of (R^T E)_i, which rows up to i make.
// The rows of a step are coded side by side, so they are taken from far apart: neighbours (a head's) are coupled most.
// A sweep behind the walk is a descent: each step's rows once more, towards what the errors of all others leave.
#include <functional>
#include <optional>
#include <vector>

#include "kernels/exec/exec.h"
#include "src/quant/output_curvature.h"

namespace fewbit {

// Steps of a linear. With so many a small model's KL fell by nine tenths of what rows one by one gave it.
inline constexpr int64_t kCoupledSteps = 32;

class CoupledRows {
 public:
  // Nothing where a matrix cannot be factored. The curvature's matrices are overwritten. `sweeps`: whether sweep() will
  // be called, which needs the matrices themselves beside their factors.
  static std::optional<CoupledRows> of(Exec&, OutputCurvature&, int64_t out, bool sweeps = false);

  int64_t steps() const { return static_cast<int64_t>(steps_.size()); }
  // Codes rows in steps. target [out, in] f32 stays as it is. `code` gets the targets of a step's rows, [some, in], of
  // which the first is row `first` in the order of the walk, and writes the values that their codes stand for over
  // them; false ends the walk, and this is false too.
  using Code = std::function<bool(int64_t first, TensorView target)>;
  bool walk(Exec&, ConstTensorView target, const Code& code);
  // The same once more, behind walk(), for the same target.
  bool sweep(Exec&, ConstTensorView target, const Code& code);
  // i32 [out] on the device: where in the order of the walk each row of the linear was.
  const Tensor& place() const { return place_; }

 private:
  // Rows [begin, end) in the order of a set.
  struct Part {
    int64_t set = 0, begin = 0, end = 0;
    Tensor inverse{};  // inv(R_BB)^T of them, [rows, rows] f32
    Tensor alone{};    // inv(S)^T, likewise, with H_BB = S S^T, for sweeps
  };
  struct Step {
    Tensor rows{};  // i32: of the linear
    std::vector<Part> parts{};
  };
  struct Set {
    Tensor factor{};  // R, in the order of the set
    Tensor whole{};   // H, likewise, for sweeps
    Tensor errors{};  // [rows, in]: target less value, of the rows so far
  };
  // What the errors of other rows have the rows of a part move by, [rows, in]; nothing moves the first of a walk.
  void move(Exec&, const Part&, bool sweeps, TensorView target) const;
  bool pass(Exec&, ConstTensorView target, bool sweeps, const Code& code);

  std::vector<Set> sets_{};
  std::vector<Step> steps_{};
  Tensor place_{};
};

// Bytes besides the curvature, at the peak.
int64_t coupled_bytes(int64_t out, int64_t in, bool sweeps);

}  // namespace fewbit
