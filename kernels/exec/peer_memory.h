#pragma once
// Memory of this process's GPU that a process with another GPU of the same machine may read and write, and the other's
// as this GPU sees it: what kernels of two processes hand each other words through.
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/exec/exec.h"

namespace fewbit {

// What names such memory in another process: a cudaIpcMemHandle_t.
using PeerHandle = std::array<char, 64>;

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  virtual PeerHandle handle() const = 0;
  virtual void* mine() const = 0;
  virtual void* theirs() const = 0;  // null until open() was true
  // Maps the memory that another process names. False where this GPU does not reach it; `why` says the reason.
  virtual bool open(const PeerHandle& of_other, std::string* why) = 0;
};

// Zeroed, and not from the pool of Exec::alloc(), whose memory no other process can map. Null where the device has none
// to hand out; `why` says the reason.
#ifdef FEWBIT_HAS_CUDA
std::unique_ptr<PeerMemory> make_peer_memory(Exec&, int64_t bytes, std::string* why);
#else
inline std::unique_ptr<PeerMemory> make_peer_memory(Exec&, int64_t, std::string* why) {
  *why = "a build without CUDA";
  return nullptr;
}
#endif

}  // namespace fewbit
