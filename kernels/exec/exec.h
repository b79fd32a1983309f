#pragma once
// Exec: the device that an op works on, its explicit first parameter. It owns the stream, the library handles and the
// allocator of that device. There are no global handles and no CUDA type in this header.
#include <functional>
#include <memory>
#include <string>

#include "src/core/tensor.h"

namespace fewbit {

struct CudaState;  // complete in kernels/exec/exec_cuda.h only

// A recorded sequence of launches on one Exec (a CUDA graph); replaying it costs one launch. Empty on the CPU.
struct RecordedGraph {
  std::unique_ptr<void, void (*)(void*)> handle{nullptr, +[](void*) {}};
};

class Exec {
 public:
  static Exec cpu();
  // Error{device} with the reason where no such GPU answers or the build has no CUDA.
  static Exec cuda(int index);
  // "cpu", "cuda", "cuda:1", or "auto" (the first GPU, else the CPU).
  static Exec from_name(const std::string& name);
  // True where a GPU answers; `why_not` receives the reason otherwise.
  static bool cuda_available(std::string* why_not = nullptr);

  Exec(Exec&&) = default;
  Exec& operator=(Exec&&) = default;

  Device device() const { return device_; }
  bool on_cuda() const { return device_.kind == Device::cuda; }
  std::string device_name() const;  // "NVIDIA H200", "CPU (2 threads)"

  Tensor alloc(DType dtype, Shape shape);         // uninitialised, on this device
  Tensor alloc_zeros(DType dtype, Shape shape);   // zeroed in stream order
  Tensor alloc_pinned(DType dtype, Shape shape);  // host memory the device can copy from; plain host memory on the CPU
  // Copies bytes between host and this device in either direction, in stream order; equal byte counts. When the
  // destination or an unpinned source is host memory the call returns after the copy is done.
  void copy(ConstTensorView from, TensorView to);
  void zero(TensorView t);
  Tensor to_device(ConstTensorView host);  // alloc + copy
  Tensor to_host(ConstTensorView t);       // alloc + copy + wait
  void sync();

  // Runs `work` once in capture mode and returns the recording (CUDA), or an empty one (CPU: nothing is run).
  RecordedGraph record(const std::function<void()>& work);
  void replay(const RecordedGraph& graph);

  int64_t peak_bytes() const;   // largest device memory held through alloc() at one time; host bytes on the CPU
  int64_t free_bytes() const;   // what the device says is free now; 0 on the CPU (not known)
  int64_t total_bytes() const;  // memory of the GPU; 0 on the CPU
  // What of the GPU's memory went since this Exec was made without alloc(): workspaces of libraries and loaded kernels,
  // and what other processes took meanwhile; 0 on the CPU.
  int64_t library_bytes() const;

  // Milliseconds between two points of the stream: mark() records one, elapsed_ms() waits for the later.
  int mark();
  double elapsed_ms(int from, int to);

  CudaState& cuda_state() const;  // stops the process on a CPU Exec

 private:
  explicit Exec(Device d) : device_(d) {}
  Device device_{};
  // A function-pointer deleter: the CPU-only build never sees CudaState complete.
  std::unique_ptr<CudaState, void (*)(CudaState*)> cuda_{nullptr, +[](CudaState*) {}};
  friend Exec make_cuda_exec(int);
};

// Picks the half of an op for a device. FEWBIT_CUDA_OP(f) is &cuda::f, or null in a build without CUDA.
#ifdef FEWBIT_HAS_CUDA
#define FEWBIT_CUDA_OP(name) (&cuda::name)
#else
#define FEWBIT_CUDA_OP(name) (static_cast<decltype(&cpu::name)>(nullptr))
#endif

namespace cuda {
// For tests: kernels take the path of compute capability 8.0 on a newer GPU too. Defined in builds with CUDA.
void force_sm80_path(Exec&, bool on);
}  // namespace cuda

template <class F>
F pick(const Exec& ex, F on_cpu, F on_cuda) {
  if (!ex.on_cuda()) return on_cpu;
  if (!on_cuda) bug("an op without a CUDA half was asked to run on the GPU");
  return on_cuda;
}

}  // namespace fewbit
