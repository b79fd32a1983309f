#pragma once
// DeviceLink: tensors from GPU to GPU by NCCL, where every rank has a GPU of its own and NCCL; Ranks uses it for its
// collective calls, whose results have the bits that they have through host memory. Work is put on the stream of the
// Exec, and nobody waits for it; it may be recorded (Exec::record) once the same call has been made with as many bytes.
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"
#include "src/ranks/nccl_calls.h"

namespace fewbit {

class Ranks;

class DeviceLink {
 public:
  // Collective, on an Exec of a GPU. The ways between the GPUs, which take NCCL a second, are made by a thread of their
  // own until the first tensor is handed over. Null, on all ranks, where one of them has no module (docs/ranks.md), two
  // have the same GPU, or the environment of one says FEWBIT_NCCL=0.
  static std::shared_ptr<DeviceLink> join(const Ranks&, Exec&);
  ~DeviceLink();
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  const char* library() const { return calls_.library(); }

  // As those of Ranks, of tensors on the device.
  void broadcast(Exec&, TensorView, int root);
  void broadcast(Exec&, std::span<const TensorView>, int root);
  void all_reduce_sum(Exec&, TensorView);
  void all_gather_rows(Exec&, TensorView all, std::span<const int64_t> begin);

 private:
  // [count] f32 to work in. Earlier ones stay, since recorded steps may work in them.
  TensorView room(Exec&, int64_t count);
  DeviceLink(const NcclCalls& calls, int rank, int size) : calls_(calls), rank_(rank), size_(size) {}
  void check(int status) const;
  void* way();  // once it is there

  const NcclCalls& calls_;
  int rank_, size_;
  void* link_ = nullptr;
  std::future<int> started_{};
  std::vector<Tensor> rooms_;
};

}  // namespace fewbit
