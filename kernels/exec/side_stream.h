#pragma once
// SideStream: copies between host memory and the device of an Exec on a stream of their own, while the Exec's computes.
// For one thread at a time; fence() is for the thread of the Exec.
#include <memory>

#include "kernels/exec/exec.h"

namespace fewbit {

struct CudaSide;  // complete in kernels/exec/side_stream_cuda.cu only
class SideStream;

namespace cuda {
std::unique_ptr<CudaSide, void (*)(CudaSide*)> make_side(Exec&, int fences);
void fence(const Exec&, CudaSide&, int i);
void wait_fence(CudaSide&, int i);
void side_copy(CudaSide&, ConstTensorView from, TensorView to);
void begin_copy(const Exec&, CudaSide&, int i, ConstTensorView from, TensorView to);
void land_copy(const Exec&, CudaSide&, int i);
void copy_behind(const Exec&, ConstTensorView from, TensorView to);
}  // namespace cuda

class SideStream {
 public:
  // `fences`: points in the Exec's stream that can be held at a time. The Exec must outlive it.
  SideStream(Exec& ex, int fences) : ex_(ex) {
#ifdef FEWBIT_HAS_CUDA
    if (ex.on_cuda()) cuda_ = cuda::make_side(ex, fences);
#else
    (void)fences;
#endif
  }
  // What the Exec has been given so far.
  void fence(int i) {
    (void)i;
#ifdef FEWBIT_HAS_CUDA
    if (cuda_) cuda::fence(ex_, *cuda_, i);
#endif
  }
  // Copies behind this call come after it; at once where the fence was never set.
  void wait(int i) {
    (void)i;
#ifdef FEWBIT_HAS_CUDA
    if (cuda_) cuda::wait_fence(*cuda_, i);
#endif
  }
  // Equal bytes, in either direction. They are there when it returns, for every stream. Host memory that is read may be
  // of any kind; that which is written must be pinned on a device, or the copy is slow.
  void copy(ConstTensorView from, TensorView to) {
    FEWBIT_ASSERT(from.bytes() == to.bytes());
#ifdef FEWBIT_HAS_CUDA
    if (cuda_) return cuda::side_copy(*cuda_, from, to);
#endif
    ex_.copy(from, to);
  }
  // For the thread of the Exec alone: a copy from or to pinned memory behind what the Exec has been given so far, and
  // what it is given from land(i) on behind the copy. Both ends stay as they are until then.
  void begin(int i, ConstTensorView from, TensorView to) {
    FEWBIT_ASSERT(from.bytes() == to.bytes());
    (void)i;
#ifdef FEWBIT_HAS_CUDA
    if (cuda_) return cuda::begin_copy(ex_, *cuda_, i, from, to);
#endif
    ex_.copy(from, to);
  }
  void land(int i) {
    (void)i;
#ifdef FEWBIT_HAS_CUDA
    if (cuda_) cuda::land_copy(ex_, *cuda_, i);
#endif
  }

 private:
  Exec& ex_;
  std::unique_ptr<CudaSide, void (*)(CudaSide*)> cuda_{nullptr, +[](CudaSide*) {}};
};

// Copies to pinned host memory in the order of the Exec and does not wait: the host may read it behind a sync.
inline void copy_behind(Exec& ex, ConstTensorView from, TensorView to) {
  FEWBIT_ASSERT(from.bytes() == to.bytes());
#ifdef FEWBIT_HAS_CUDA
  if (ex.on_cuda()) return cuda::copy_behind(ex, from, to);
#endif
  ex.copy(from, to);
}

}  // namespace fewbit
