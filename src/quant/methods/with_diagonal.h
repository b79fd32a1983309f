#pragma once
// WithDiagonal: a Gram matrix under another diagonal for a while. Internal to src/quant/methods.
#include "kernels/quantize/matrix_edit.h"
#include "src/core/error.h"

namespace fewbit {

// The statistics' Gram matrix with another diagonal, for as long as this lives: a copy would be as large as the factor.
// Statistics therefore belong to one method at a time.
class WithDiagonal {
 public:
  WithDiagonal(Exec& ex, const Tensor& gram, ConstTensorView diag)
      : ex_(ex), gram_(gram.view()), own_(ex.alloc(DType::f32, {gram.cols()})) {
    diagonal(ex, gram_, own_);
    set_diagonal(ex, diag, gram_);
  }
  // A device that fails here has failed what was run on the matrix as well, and will say so at the next wait.
  ~WithDiagonal() {
    try {
      set_diagonal(ex_, own_, gram_);
    } catch (const Error&) {
    }
  }
  WithDiagonal(const WithDiagonal&) = delete;
  WithDiagonal& operator=(const WithDiagonal&) = delete;
  TensorView h() const { return gram_; }

 private:
  Exec& ex_;
  TensorView gram_;
  Tensor own_;
};

}  // namespace fewbit
