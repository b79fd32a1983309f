#pragma once
// RoughProducts: while one lives, cuBLAS rounds the factors of its products of f32 matrices to TF32 (10 bits of
// mantissa) and sums them in f32, in about an eighth of the time. For what is summed over many tokens and noisy itself:
// the gradients behind the curvature of outputs. On the CPU nothing changes.
#include "kernels/exec/exec.h"

namespace fewbit {

namespace cuda {
void round_factors(Exec&);
void keep_factors(Exec&) noexcept;
}  // namespace cuda

class RoughProducts {
 public:
  explicit RoughProducts(Exec& ex) : ex_(ex) {
#ifdef FEWBIT_HAS_CUDA
    if (ex_.on_cuda()) cuda::round_factors(ex_);
#endif
  }
  ~RoughProducts() {
#ifdef FEWBIT_HAS_CUDA
    if (ex_.on_cuda()) cuda::keep_factors(ex_);
#endif
  }
  RoughProducts(const RoughProducts&) = delete;
  RoughProducts& operator=(const RoughProducts&) = delete;

 private:
  Exec& ex_;
};

}  // namespace fewbit
