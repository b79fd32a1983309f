#pragma once
// GramLanes: both sums of one input on several streams at a time. A product of cuBLAS leaves multiprocessors idle at
// its end and while it writes its sums; strips of other rows fill them. Every element is summed as in gram.h, in the
// order of its chunks, so the bits are those of add_gram_half() and cross_gram() one after the other.
#include <memory>

#include "kernels/statistics/gram.h"

namespace fewbit {

struct CudaLanes;  // complete in kernels/statistics/gram_cuda.cu only
namespace cuda {
std::unique_ptr<CudaLanes, void (*)(CudaLanes*)> make_lanes(Exec&);
void add_sums(Exec&, CudaLanes&, ConstTensorView x, ConstTensorView x_full, TensorView g, TensorView d, RowBand half,
              RowBand whole);
}  // namespace cuda

class GramLanes {
 public:
  // Bytes of the device that they take: a workspace of cuBLAS for each stream besides the Exec's.
  static constexpr int kBeside = 2;
  static constexpr int64_t kBytes = kBeside * (int64_t{32} << 20);

  // `beside` false, or on the CPU: everything on the stream of the Exec, which must outlive this.
  GramLanes(Exec& ex, bool beside) : ex_(ex) {
    (void)beside;
#ifdef FEWBIT_HAS_CUDA
    if (ex.on_cuda() && beside) cuda_ = cuda::make_lanes(ex);
#endif
  }
  // g as add_gram_half(x, g, half) and, where x_full has data, d as cross_gram(x_full, x, d, whole).
  void add(ConstTensorView x, ConstTensorView x_full, TensorView g, TensorView d, RowBand half, RowBand whole) const {
#ifdef FEWBIT_HAS_CUDA
    if (cuda_) return cuda::add_sums(ex_, *cuda_, x, x_full, g, d, half, whole);
#endif
    add_gram_half(ex_, x, g, half);
    if (x_full.data) cross_gram(ex_, x_full, x, d, whole);
  }

 private:
  Exec& ex_;
  std::unique_ptr<CudaLanes, void (*)(CudaLanes*)> cuda_{nullptr, +[](CudaLanes*) {}};
};

}  // namespace fewbit
