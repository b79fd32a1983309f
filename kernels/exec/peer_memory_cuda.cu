#include <cstring>

#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/peer_memory.h"

namespace fewbit {
namespace {

static_assert(sizeof(PeerHandle) == sizeof(cudaIpcMemHandle_t));

// Whether a call that may fail did not. What it left behind is no error of the next launch.
bool went_well(cudaError_t status, std::string* why) {
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  *why = cudaGetErrorString(status);
  return false;
}

// The processes end one after the other, and the one that is left may free memory that the other has mapped, or the
// other way round: the driver keeps what is mapped until nobody has it.
class IpcMemory final : public PeerMemory {
 public:
  explicit IpcMemory(int device) : device_(device) {}
  ~IpcMemory() override {
    cudaSetDevice(device_);
    if (theirs_) cudaIpcCloseMemHandle(theirs_);
    if (mine_) cudaFree(mine_);
    cudaGetLastError();  // of a device that has failed before
  }
  bool allocate(size_t bytes, std::string* why) {
    cudaIpcMemHandle_t named{};
    if (!went_well(cudaMalloc(&mine_, bytes), why) || !went_well(cudaMemset(mine_, 0, bytes), why) ||
        !went_well(cudaDeviceSynchronize(), why) || !went_well(cudaIpcGetMemHandle(&named, mine_), why))
      return false;
    std::memcpy(handle_.data(), &named, sizeof named);
    return true;
  }
  PeerHandle handle() const override { return handle_; }
  void* mine() const override { return mine_; }
  void* theirs() const override { return theirs_; }
  bool open(const PeerHandle& of_other, std::string* why) override {
    cudaIpcMemHandle_t named{};
    std::memcpy(&named, of_other.data(), sizeof named);
    FEWBIT_CUDA_CALL(cudaSetDevice(device_));
    return went_well(cudaIpcOpenMemHandle(&theirs_, named, cudaIpcMemLazyEnablePeerAccess), why);
  }

 private:
  int device_;
  void *mine_ = nullptr, *theirs_ = nullptr;
  PeerHandle handle_{};
};

}  // namespace

std::unique_ptr<PeerMemory> make_peer_memory(Exec& ex, int64_t bytes, std::string* why) {
  // A handle names the whole range that the driver reserved, so nothing else should lie in it.
  constexpr int64_t kRange = int64_t{2} << 20;
  const int device = ex.device().index;
  FEWBIT_CUDA_CALL(cudaSetDevice(device));
  auto memory = std::make_unique<IpcMemory>(device);
  if (!memory->allocate(static_cast<size_t>((bytes + kRange - 1) / kRange * kRange), why)) return nullptr;
  return memory;
}

}  // namespace fewbit
