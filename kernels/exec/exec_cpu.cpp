// The CPU half of Exec, and the dispatch to the CUDA half where the build has one (kernels/exec/exec_cuda.cu).
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "kernels/exec/exec_measure.h"
#include "src/core/host_blocks.h"
#include "src/core/parallel.h"
#include "src/core/text/nearest.h"

namespace fewbit {

#ifdef FEWBIT_HAS_CUDA
// Defined in kernels/exec/exec_cuda.cu.
namespace cuda {
bool available(std::string* why_not);
std::string device_name(const Exec&);
Tensor alloc(Exec&, DType, Shape);
Tensor alloc_pinned(Exec&, DType, Shape);
void copy(Exec&, ConstTensorView from, TensorView to);
void zero(Exec&, TensorView);
void sync(Exec&);
RecordedGraph record(Exec&, const std::function<void()>&);
void replay(Exec&, const RecordedGraph&);
int64_t peak_bytes(const Exec&);
void reset_peak(Exec&);
int64_t free_bytes(const Exec&);
int64_t total_bytes(const Exec&);
int64_t library_bytes(const Exec&);
int mark(Exec&);
double elapsed_ms(Exec&, int from, int to);
void forget_marks(Exec&);
}  // namespace cuda
Exec make_cuda_exec(int index);
#define FEWBIT_ON_CUDA(call) \
  if (on_cuda()) return cuda::call
#else
#define FEWBIT_ON_CUDA(call)
#endif

namespace {

std::atomic<int64_t> g_bytes{0}, g_peak{0};

// Marks of the CPU clock; an Exec on the CPU has no stream.
std::vector<std::chrono::steady_clock::time_point>& marks() {
  thread_local std::vector<std::chrono::steady_clock::time_point> m;
  return m;
}

void free_counted(void* data, size_t bytes, void*) {
  g_bytes -= static_cast<int64_t>(bytes);
  give_host_block(data, bytes);
}

}  // namespace

Exec Exec::cpu() { return Exec(Device{Device::cpu, 0}); }

bool Exec::cuda_available([[maybe_unused]] std::string* why_not) {
#ifdef FEWBIT_HAS_CUDA
  return cuda::available(why_not);
#else
  if (why_not) *why_not = "this build has no CUDA (built with FEWBIT_CUDA=OFF or without an nvcc)";
  return false;
#endif
}

Exec Exec::cuda(int index) {
  std::string why;
  if (!cuda_available(&why)) fail(ErrorKind::device, "no GPU: " + why + "; use --device cpu");
#ifdef FEWBIT_HAS_CUDA
  return make_cuda_exec(index);
#else
  (void)index;
  bug("unreachable");
#endif
}

Exec Exec::from_name(const std::string& name) {
  if (name == "cpu") return cpu();
  if (name == "auto") return cuda_available() ? cuda(0) : cpu();
  if (name == "cuda") return cuda(0);
  if (name.rfind("cuda:", 0) == 0 && name.size() > 5 && name.find_first_not_of("0123456789", 5) == std::string::npos)
    return cuda(std::stoi(name.substr(5)));
  fail(ErrorKind::usage, unknown_name("--device", name, {"auto", "cpu", "cuda", "cuda:0"}));
}

std::string Exec::device_name() const {
  FEWBIT_ON_CUDA(device_name(*this));
  return "CPU (" + std::to_string(thread_count()) + " threads)";
}

Tensor Exec::alloc(DType dtype, Shape shape) {
  FEWBIT_ON_CUDA(alloc(*this, dtype, shape));
  const auto bytes = static_cast<size_t>(shape.numel() * bytes_of(dtype));
  void* p = take_host_block(bytes);
  if (!p) fail(ErrorKind::memory, "out of host memory: asked for " + std::to_string(bytes) + " bytes");
  const int64_t now = g_bytes += static_cast<int64_t>(bytes);
  for (int64_t peak = g_peak; now > peak && !g_peak.compare_exchange_weak(peak, now);) {
  }
  return Tensor(TensorView{p, dtype, shape, device_}, Deleter{free_counted, nullptr});
}

Tensor Exec::alloc_zeros(DType dtype, Shape shape) {
  Tensor t = alloc(dtype, shape);
  zero(t);
  return t;
}

Tensor Exec::alloc_pinned(DType dtype, Shape shape) {
  FEWBIT_ON_CUDA(alloc_pinned(*this, dtype, shape));
  return Tensor::host(dtype, shape);
}

void Exec::copy(ConstTensorView from, TensorView to) {
  FEWBIT_ASSERT(from.bytes() == to.bytes());
  FEWBIT_ON_CUDA(copy(*this, from, to));
  if (from.bytes() > 0) std::memmove(to.data, from.data, static_cast<size_t>(from.bytes()));
}

void Exec::zero(TensorView t) {
  FEWBIT_ON_CUDA(zero(*this, t));
  if (t.bytes() > 0) std::memset(t.data, 0, static_cast<size_t>(t.bytes()));
}

Tensor Exec::to_device(ConstTensorView host) {
  Tensor t = alloc(host.dtype, host.shape);
  copy(host, t);
  return t;
}

Tensor Exec::to_host(ConstTensorView t) {
  Tensor h = Tensor::host(t.dtype, t.shape);
  copy(t, h);
  return h;
}

void Exec::sync() { FEWBIT_ON_CUDA(sync(*this)); }

RecordedGraph Exec::record([[maybe_unused]] const std::function<void()>& work) {
  FEWBIT_ON_CUDA(record(*this, work));
  return {};
}

void Exec::replay([[maybe_unused]] const RecordedGraph& graph) { FEWBIT_ON_CUDA(replay(*this, graph)); }

int64_t Exec::peak_bytes() const {
  FEWBIT_ON_CUDA(peak_bytes(*this));
  return g_peak;
}

void reset_peak([[maybe_unused]] Exec& ex) {
#ifdef FEWBIT_HAS_CUDA
  if (ex.on_cuda()) return cuda::reset_peak(ex);
#endif
  g_peak = g_bytes.load();
}

void forget_marks([[maybe_unused]] Exec& ex) {
#ifdef FEWBIT_HAS_CUDA
  if (ex.on_cuda()) return cuda::forget_marks(ex);
#endif
  marks().clear();
}

int64_t Exec::free_bytes() const {
  FEWBIT_ON_CUDA(free_bytes(*this));
  return 0;
}

int64_t Exec::total_bytes() const {
  FEWBIT_ON_CUDA(total_bytes(*this));
  return 0;
}

int64_t Exec::library_bytes() const {
  FEWBIT_ON_CUDA(library_bytes(*this));
  return 0;
}

int Exec::mark() {
  FEWBIT_ON_CUDA(mark(*this));
  marks().push_back(std::chrono::steady_clock::now());
  return static_cast<int>(marks().size()) - 1;
}

double Exec::elapsed_ms(int from, int to) {
  FEWBIT_ON_CUDA(elapsed_ms(*this, from, to));
  return std::chrono::duration<double, std::milli>(marks()[static_cast<size_t>(to)] -
                                                   marks()[static_cast<size_t>(from)])
      .count();
}

CudaState& Exec::cuda_state() const {
  FEWBIT_ASSERT(cuda_ != nullptr);
  return *cuda_;
}

}  // namespace fewbit
