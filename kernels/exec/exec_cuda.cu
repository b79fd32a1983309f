// The CUDA half of Exec. One stream, one cuBLAS handle with a fixed workspace, stream-ordered allocation from the
// device's default pool (which keeps what it has got), copies in stream order, and recordings as CUDA graphs. Large
// copies from unpinned host memory (weights in a mapped file) and to it (codes) pass through two pinned buffers, filled
// and emptied by all threads, so that they run at the speed of the bus.
#include <algorithm>
#include <cstring>
#include <future>

#include "kernels/exec/exec_cuda.h"

namespace fewbit {

// Sums in f32, and no factor rounded that is not.
constexpr cublasMath_t kMathMode =
    static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
namespace cuda {
namespace {

constexpr size_t kStagedFrom = size_t{1} << 20;   // smaller unpinned copies are left to the driver
constexpr size_t kScratchStep = size_t{2} << 20;  // scratch space grows in steps of a GPU page

std::string place(const char* expression, const char* name, const char* file, int line) {
  return std::string(name) + " from " + expression + " at " + file + ":" + std::to_string(line);
}

// Bytes an allocation could get now: what the driver has and what the pool holds unused.
int64_t available_bytes(int device) {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  cudaMemPool_t pool = nullptr;
  uint64_t reserved = 0, used = 0;
  if (cudaDeviceGetDefaultMemPool(&pool, device) == cudaSuccess &&
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) == cudaSuccess &&
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaSuccess)
    free += reserved - used;
  return static_cast<int64_t>(free);
}

// Of the whole device, what is neither free nor with the pool that alloc() draws on.
int64_t bytes_outside_pool(int device) {
  size_t free = 0, total = 0;
  cudaMemPool_t pool = nullptr;
  uint64_t reserved = 0;
  FEWBIT_CUDA_CALL(cudaMemGetInfo(&free, &total));
  FEWBIT_CUDA_CALL(cudaDeviceGetDefaultMemPool(&pool, device));
  FEWBIT_CUDA_CALL(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  return static_cast<int64_t>(total - free) - static_cast<int64_t>(reserved);
}

void free_counted(void* data, size_t bytes, void* context) {
  auto* memory = static_cast<DeviceMemory*>(context);
  memory->release(data, bytes);
  memory->drop();
}

void free_pinned(void* data, size_t, void*) { cudaFreeHost(data); }

bool is_pinned(const void* host) {
  cudaPointerAttributes a{};
  if (cudaPointerGetAttributes(&a, host) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return a.type == cudaMemoryTypeHost;
}

void make_current(const CudaState& s) { FEWBIT_CUDA_CALL(cudaSetDevice(s.device)); }

}  // namespace

void check(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears what is not sticky
  const std::string what = place(expression, cudaGetErrorName(status), file, line);
  if (status == cudaErrorMemoryAllocation) fail(ErrorKind::memory, "out of GPU or pinned memory: " + what);
  fail(ErrorKind::device, "CUDA: " + what + " (" + cudaGetErrorString(status) + ")");
}

void check(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const ErrorKind kind = status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::memory : ErrorKind::device;
  fail(kind, "cuBLAS: " + place(expression, cublasGetStatusName(status), file, line));
}

void check(cusolverStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  const ErrorKind kind = status == CUSOLVER_STATUS_ALLOC_FAILED ? ErrorKind::memory : ErrorKind::device;
  const std::string name = "status " + std::to_string(static_cast<int>(status));
  fail(kind, "cuSOLVER: " + place(expression, name.c_str(), file, line));
}

void* DeviceMemory::allocate(size_t size) {
  void* p = nullptr;
  cudaError_t status = cudaMallocAsync(&p, std::max<size_t>(size, 1), stream);
  if (status == cudaErrorMemoryAllocation) {  // frees still under way, or memory the pool holds in other sizes
    cudaGetLastError();
    cudaMemPool_t pool = nullptr;
    FEWBIT_CUDA_CALL(cudaStreamSynchronize(stream));
    FEWBIT_CUDA_CALL(cudaDeviceGetDefaultMemPool(&pool, device));
    FEWBIT_CUDA_CALL(cudaMemPoolTrimTo(pool, 0));
    status = cudaMallocAsync(&p, std::max<size_t>(size, 1), stream);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(ErrorKind::memory, "out of GPU memory: asked for " + std::to_string(size) + " bytes with " +
                                std::to_string(available_bytes(device)) + " free");
  }
  FEWBIT_CUDA_CALL(status);
  const int64_t now = bytes += static_cast<int64_t>(size);
  for (int64_t seen = peak; now > seen && !peak.compare_exchange_weak(seen, now);) {
  }
  return p;
}

// Called from destructors: a failing free (after a device error) is not reported a second time.
void DeviceMemory::release(void* data, size_t size) {
  bytes -= static_cast<int64_t>(size);
  if (closed)
    cudaFree(data);
  else
    cudaFreeAsync(data, stream);
}

void DeviceMemory::drop() {
  if (--owners == 0) delete this;
}

bool available(std::string* why_not) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return true;
  cudaGetLastError();
  if (why_not) {
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
      *why_not = "no CUDA device answers";
    else if (status == cudaErrorInsufficientDriver)
      *why_not = "no CUDA driver, or one older than this build's CUDA";
    else
      *why_not = std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
  }
  return false;
}

std::string device_name(const Exec& ex) { return ex.cuda_state().props.name; }

Tensor alloc(Exec& ex, DType dtype, Shape shape) {
  CudaState& s = ex.cuda_state();
  FEWBIT_ASSERT(!s.recording);  // a recorded step works in memory that lives as long as the recording
  make_current(s);
  const auto bytes = static_cast<size_t>(shape.numel() * bytes_of(dtype));
  void* p = s.memory->allocate(bytes);
  ++s.memory->owners;
  return Tensor(TensorView{p, dtype, shape, ex.device()}, Deleter{free_counted, s.memory});
}

Tensor alloc_pinned(Exec& ex, DType dtype, Shape shape) {
  make_current(ex.cuda_state());
  const auto bytes = static_cast<size_t>(shape.numel() * bytes_of(dtype));
  void* p = nullptr;
  FEWBIT_CUDA_CALL(cudaHostAlloc(&p, std::max<size_t>(bytes, 1), cudaHostAllocDefault));
  return Tensor(TensorView{p, dtype, shape, Device{}}, Deleter{free_pinned, nullptr});
}

void copy(Exec& ex, ConstTensorView from, TensorView to) {
  const auto bytes = static_cast<size_t>(from.bytes());
  if (bytes == 0) return;
  CudaState& s = ex.cuda_state();
  make_current(s);
  const bool from_host = from.device.kind == Device::cpu, to_host = to.device.kind == Device::cpu;
  if (from_host && to_host) {
    std::memmove(to.data, from.data, bytes);
    return;
  }
  const cudaMemcpyKind kind = from_host ? cudaMemcpyHostToDevice
                              : to_host ? cudaMemcpyDeviceToHost
                                        : cudaMemcpyDeviceToDevice;
  const bool wait = to_host || (from_host && !is_pinned(from.data));
  FEWBIT_ASSERT(!(wait && s.recording));
  if (wait && from_host && bytes >= kStagedFrom) return s.staging_.upload(s.stream, from.data, to.data, bytes);
  if (to_host && bytes >= kStagedFrom && !is_pinned(to.data))
    return s.staging_.download(s.stream, from.data, to.data, bytes);
  FEWBIT_CUDA_CALL(cudaMemcpyAsync(to.data, from.data, bytes, kind, s.stream));
  if (wait) FEWBIT_CUDA_CALL(cudaStreamSynchronize(s.stream));
}

void zero(Exec& ex, TensorView t) {
  if (t.bytes() == 0) return;
  CudaState& s = ex.cuda_state();
  make_current(s);
  FEWBIT_CUDA_CALL(cudaMemsetAsync(t.data, 0, static_cast<size_t>(t.bytes()), s.stream));
}

void sync(Exec& ex) {
  make_current(ex.cuda_state());
  FEWBIT_CUDA_CALL(cudaStreamSynchronize(ex.cuda_state().stream));
}

RecordedGraph record(Exec& ex, const std::function<void()>& work) {
  CudaState& s = ex.cuda_state();
  make_current(s);
  // Leaves capture mode also when `work` throws.
  struct Capture {
    CudaState& state;
    cudaGraph_t graph = nullptr;
    bool open = true;
    cudaError_t end() {
      open = state.recording = false;
      return cudaStreamEndCapture(state.stream, &graph);
    }
    ~Capture() {
      if (open) end();
      if (graph) cudaGraphDestroy(graph);
    }
  };
  FEWBIT_CUDA_CALL(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal));
  s.recording = true;
  Capture capture{s};
  work();
  FEWBIT_CUDA_CALL(capture.end());
  s.scratch_.graph_holds = s.flagged_partials_.graph_holds = true;
  cudaGraphExec_t exec = nullptr;
  FEWBIT_CUDA_CALL(cudaGraphInstantiate(&exec, capture.graph, 0));
  RecordedGraph out;
  out.handle = {exec, +[](void* p) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(p)); }};
  return out;
}

void replay(Exec& ex, const RecordedGraph& graph) {
  FEWBIT_ASSERT(graph.handle != nullptr);
  CudaState& s = ex.cuda_state();
  make_current(s);
  FEWBIT_CUDA_CALL(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle.get()), s.stream));
}

int64_t peak_bytes(const Exec& ex) { return ex.cuda_state().memory->peak; }

void reset_peak(Exec& ex) {
  DeviceMemory& memory = *ex.cuda_state().memory;
  memory.peak = memory.bytes.load();
}

int64_t free_bytes(const Exec& ex) {
  make_current(ex.cuda_state());
  return available_bytes(ex.cuda_state().device);
}

int64_t total_bytes(const Exec& ex) { return static_cast<int64_t>(ex.cuda_state().props.totalGlobalMem); }

int64_t library_bytes(const Exec& ex) {
  make_current(ex.cuda_state());
  const CudaState& s = ex.cuda_state();
  return std::max<int64_t>(0, bytes_outside_pool(s.device) - s.outside_pool_before);
}

int mark(Exec& ex) {
  CudaState& s = ex.cuda_state();
  make_current(s);
  // Many at once, and that early: beside threads that launch the driver takes a millisecond for each.
  constexpr size_t kMarksAtOnce = 2048;
  if (s.marks_taken_ == s.marks_.size())
    for (size_t i = 0; i < kMarksAtOnce; ++i) {
      cudaEvent_t e = nullptr;
      FEWBIT_CUDA_CALL(cudaEventCreate(&e));
      s.marks_.push_back(e);
    }
  FEWBIT_CUDA_CALL(cudaEventRecord(s.marks_[s.marks_taken_], s.stream));
  return static_cast<int>(s.marks_taken_++);
}

void forget_marks(Exec& ex) { ex.cuda_state().marks_taken_ = 0; }

double elapsed_ms(Exec& ex, int from, int to) {
  const CudaState& s = ex.cuda_state();
  const auto at = [&](int i) { return s.marks_.at(static_cast<size_t>(i)); };
  float ms = 0;
  FEWBIT_CUDA_CALL(cudaEventSynchronize(at(to)));
  FEWBIT_CUDA_CALL(cudaEventElapsedTime(&ms, at(from), at(to)));
  return ms;
}

void force_sm80_path(Exec& ex, bool on) { ex.cuda_state().force_sm80 = on; }

void round_factors(Exec& ex) {
  FEWBIT_CUBLAS_CALL(cublasSetMathMode(ex.cuda_state().blas, CUBLAS_TF32_TENSOR_OP_MATH));
}
void keep_factors(Exec& ex) noexcept { cublasSetMathMode(ex.cuda_state().blas, kMathMode); }

}  // namespace cuda

CudaState::CudaState(int device_index) : device(device_index) {
  // Hundreds of megabytes are mapped and bound while the driver starts.
  std::future<void> libraries = std::async(std::launch::async, load_cuda_libraries);
  int count = 0;
  FEWBIT_CUDA_CALL(cudaGetDeviceCount(&count));
  if (device < 0 || device >= count)
    fail(ErrorKind::device, "no GPU " + std::to_string(device) + ": this machine has " + std::to_string(count));
  FEWBIT_CUDA_CALL(cudaGetDeviceProperties(&props, device));
  if (props.major < 8)
    fail(ErrorKind::device, std::string(props.name) + " has compute capability " + std::to_string(props.major) + "." +
                                std::to_string(props.minor) + "; 8.0 or newer is needed, use --device cpu");
  FEWBIT_CUDA_CALL(cudaSetDevice(device));
  FEWBIT_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaMemPool_t pool = nullptr;
  uint64_t keep = UINT64_MAX;  // freed memory stays with the pool, so alloc() is cheap after the first time
  FEWBIT_CUDA_CALL(cudaDeviceGetDefaultMemPool(&pool, device));
  FEWBIT_CUDA_CALL(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  outside_pool_before = cuda::bytes_outside_pool(device);
  libraries.get();
  memory = new cuda::DeviceMemory;
  memory->device = device;
  memory->stream = stream;
  blas_workspace = memory->allocate(kBlasWorkspace);
  counters = static_cast<uint32_t*>(memory->allocate(kCounters * sizeof(uint32_t)));
  FEWBIT_CUDA_CALL(cudaMemsetAsync(counters, 0, kCounters * sizeof(uint32_t), stream));
  FEWBIT_CUBLAS_CALL(cublasCreate(&blas));
  FEWBIT_CUBLAS_CALL(cublasSetStream(blas, stream));
  FEWBIT_CUBLAS_CALL(cublasSetWorkspace(blas, blas_workspace, kBlasWorkspace));  // after the stream, which resets it
  FEWBIT_CUBLAS_CALL(cublasSetMathMode(blas, kMathMode));
  FEWBIT_CUBLAS_CALL(cublasLtCreate(&blas_lt));
}

CudaState::~CudaState() {
  cudaSetDevice(device);
  cudaStreamSynchronize(stream);
  for (cudaEvent_t e : marks_) cudaEventDestroy(e);
  if (solver_) cusolverDnDestroy(solver_);
  if (blas_lt) cublasLtDestroy(blas_lt);
  if (blas) cublasDestroy(blas);
  for (const auto& [data, size] : retired_) memory->release(data, size);
  for (const Grown& space : {scratch_, flagged_partials_})
    if (space.data) memory->release(space.data, space.size);
  memory->release(counters, kCounters * sizeof(uint32_t));
  memory->release(blas_workspace, kBlasWorkspace);
  cudaStreamSynchronize(stream);
  memory->closed = true;
  memory->drop();
  cudaStreamDestroy(stream);
}

cusolverDnHandle_t CudaState::solver() {
  if (!solver_) {
    FEWBIT_CUSOLVER_CALL(cusolverDnCreate(&solver_));
    FEWBIT_CUSOLVER_CALL(cusolverDnSetStream(solver_, stream));
  }
  return solver_;
}

void CudaState::grow(Grown& space, size_t bytes) {
  FEWBIT_ASSERT(!recording);
  if (space.data && space.graph_holds)
    retired_.emplace_back(space.data, space.size);
  else if (space.data)
    memory->release(space.data, space.size);
  space = {};
  const size_t size = (bytes + cuda::kScratchStep - 1) / cuda::kScratchStep * cuda::kScratchStep;
  space.data = memory->allocate(size);
  space.size = size;
}

void* CudaState::scratch(size_t bytes) {
  if (bytes > scratch_.size) grow(scratch_, bytes);
  return scratch_.data;
}

void* CudaState::flagged_partials(size_t bytes) {
  if (bytes > flagged_partials_.size) {
    grow(flagged_partials_, bytes);
    FEWBIT_CUDA_CALL(cudaMemsetAsync(flagged_partials_.data, 0xff, flagged_partials_.size, stream));
  }
  return flagged_partials_.data;
}

Exec make_cuda_exec(int index) {
  Exec ex(Device{Device::cuda, index});
  ex.cuda_ = {new CudaState(index), +[](CudaState* s) { delete s; }};
  return ex;
}

}  // namespace fewbit
