#pragma once
// CudaState: all that a CUDA Exec owns (stream, library handles, scratch space, the count of device memory), and the
// macros that turn a CUDA status into an Error. Included by the CUDA halves of ops alone.
#include <cuda_runtime.h>

#include <atomic>
#include <string>
#include <vector>

#include "kernels/exec/cuda_libraries.h"
#include "kernels/exec/exec.h"
#include "kernels/exec/gpu_traits.h"
#include "kernels/exec/staging.cuh"

namespace fewbit {

namespace cuda {

// Parts of Exec that reach into the state (kernels/exec/exec_cpu.cpp dispatches to them).
void copy(Exec&, ConstTensorView from, TensorView to);
RecordedGraph record(Exec&, const std::function<void()>&);
int mark(Exec&);
double elapsed_ms(Exec&, int from, int to);
void forget_marks(Exec&);

// Out of line, so that the macros stay small at every call.
void check(cudaError_t status, const char* expression, const char* file, int line);
void check(cublasStatus_t status, const char* expression, const char* file, int line);
void check(cusolverStatus_t status, const char* expression, const char* file, int line);

// Each throws Error{device}, or Error{memory} where the status says out of memory, with the expression, the name of the
// status and the place. cuSOLVER's `info` is data, not an error.
#define FEWBIT_CUDA_CALL(expr) ::fewbit::cuda::check((expr), #expr, __FILE__, __LINE__)
#define FEWBIT_CUBLAS_CALL(expr) ::fewbit::cuda::check((expr), #expr, __FILE__, __LINE__)
#define FEWBIT_CUSOLVER_CALL(expr) ::fewbit::cuda::check((expr), #expr, __FILE__, __LINE__)
// After every kernel launch: a bad configuration is reported here, at its line.
#define FEWBIT_CUDA_LAUNCHED() FEWBIT_CUDA_CALL(cudaGetLastError())

// Allocates and counts the device memory of one Exec. Tensors hold a pointer to it, so it lives until the Exec and
// every tensor allocated from it are gone; a tensor that outlives its Exec is freed without the stream.
struct DeviceMemory {
  int device = 0;
  cudaStream_t stream = nullptr;
  std::atomic<int64_t> bytes{0}, peak{0};
  std::atomic<int64_t> owners{1};  // the Exec and its tensors
  std::atomic<bool> closed{false};

  void* allocate(size_t size);            // stream-ordered; Error{memory} with the asked and the free bytes
  void release(void* data, size_t size);  // stream-ordered
  void drop();                            // one owner less; the last one deletes this
};

}  // namespace cuda

struct CudaState {
  explicit CudaState(int device_index);
  ~CudaState();
  CudaState(const CudaState&) = delete;
  CudaState& operator=(const CudaState&) = delete;

  // cuBLAS works in this fixed space, so that its choice of algorithm never depends on what else is allocated. 32 MiB
  // is what NVIDIA recommends for Hopper.
  static constexpr size_t kBlasWorkspace = size_t{32} << 20;
  // Zeroed integers for kernels whose last block finishes the work; every user leaves them zero.
  static constexpr int kCounters = 1 << 16;

  int device = 0;
  cudaDeviceProp props{};
  int sms() const { return props.multiProcessorCount; }
  size_t max_shared() const { return props.sharedMemPerBlockOptin; }  // bytes a block can ask for
  // True where Hopper's own instructions may be used; false on other GPUs and when a test forces the sm_80 path.
  bool sm90() const { return traits().hopper(); }
  GpuTraits traits() const {
    return {.capability = force_sm80 ? 80 : 10 * props.major + props.minor,
            .sms = sms(),
            .max_shared = static_cast<int64_t>(max_shared())};
  }
  bool force_sm80 = false;  // set by force_sm80_path() alone

  cudaStream_t stream = nullptr;
  cublasHandle_t blas = nullptr;
  cublasLtHandle_t blas_lt = nullptr;
  cusolverDnHandle_t solver();  // made on first use

  // Device memory for one op, 256-byte aligned, valid until the next op asks. It grows only. Growing while a graph is
  // recorded is a defect, so a step runs once before it is recorded. Memory that a recorded graph may point to is kept
  // until the Exec goes.
  void* scratch(size_t bytes);
  template <class T>
  T* scratch_of(int64_t count) {
    return static_cast<T*>(scratch(static_cast<size_t>(count) * sizeof(T)));
  }
  uint32_t* counters = nullptr;  // [kCounters], zero between ops
  // `bytes` of words for flagged partial sums (kernels/device/flagged_partials.cuh): all bits are set between ops, and
  // every user leaves them so. Grows as scratch() does.
  void* flagged_partials(size_t bytes);

  cuda::DeviceMemory* memory = nullptr;
  int64_t outside_pool_before = 0;  // of the device's memory, before libraries took any
  void* blas_workspace = nullptr;
  bool recording = false;

 private:
  friend void cuda::copy(Exec&, ConstTensorView, TensorView);
  friend RecordedGraph cuda::record(Exec&, const std::function<void()>&);
  friend int cuda::mark(Exec&);
  friend double cuda::elapsed_ms(Exec&, int, int);
  friend void cuda::forget_marks(Exec&);

  cusolverDnHandle_t solver_ = nullptr;
  struct Grown {
    void* data = nullptr;
    size_t size = 0;
    bool graph_holds = false;
  };
  void grow(Grown& space, size_t bytes);
  Grown scratch_, flagged_partials_;
  std::vector<std::pair<void*, size_t>> retired_;  // what these were before they grew, where graphs may still use it
  cuda::Staging staging_;
  std::vector<cudaEvent_t> marks_;
  size_t marks_taken_ = 0;  // since they were last forgotten
};

}  // namespace fewbit
