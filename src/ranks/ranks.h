#pragma once
// Ranks: the processes that work on one task together. There are two engines: none (one process, every call is
// trivial) and MPI. Every rank makes the same calls of the collective ones in the same order, and one call at a time.
//
// Tensors lie in host memory or on the device of the Exec. A tensor on a GPU goes through pinned host memory; in the
// collective calls it goes from GPU to GPU where NCCL is found and every rank has a GPU of its own (device_link.h).
// Then a call does not wait for the stream. A message is contiguous bytes of any dtype; both sides must name equally
// many.
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"
#include "src/ranks/launch.h"
#include "src/ranks/mpi_calls.h"

namespace fewbit {

// A message under way. Its tensor stays where it is, and is not written (not read, of one to receive), until wait()
// has returned. MPI may move long messages only while one of the two sides is in a call of Ranks or Message.
class Message {
 public:
  Message() = default;
  Message(Message&& other) noexcept;
  Message& operator=(Message&&) = delete;
  ~Message();  // a message that nobody waited for is a defect, unless an Error is on its way
  void wait();
  bool done();  // does not wait; true: nothing is left to wait for

 private:
  friend class Ranks;
  void arrived();

  const MpiCalls* calls_ = nullptr;
  void* request_ = nullptr;
  Exec* ex_ = nullptr;
  Tensor staged_{};         // the host's copy of a tensor on a device
  TensorView to_device_{};  // of one to receive
};

class DeviceLink;  // src/ranks/device_link.h

class Ranks {
 public:
  Ranks() = default;  // one process
  // Joins the processes of a launch; of one process, nothing is loaded. Error{usage} where the build has no MPI or its
  // MPI is not the one that the launcher belongs to.
  static Ranks join(const Launch& launch);

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  bool alone() const { return size() == 1; }
  // Among the processes of this machine.
  int node_rank() const { return place_.node_rank; }
  int node_size() const { return place_.node_size; }
  const std::string& library() const { return library_; }  // "Open MPI v4.1.4"; "" of one process
  // Whether tensors of that device go from GPU to GPU without the host, so that steps with them can be recorded.
  // Collective.
  bool link_devices(Exec&) const;
  // Collective, when no tensor on a GPU will go any more: takes the links down beside what the process still does.
  void unlink_devices() const;
  std::string device_library() const;  // "NCCL 2.28.9" where tensors go from GPU to GPU; "" else, and until one went
  // CPU threads that this process should take: as many as the processors that the launcher lets it use, those that
  // several processes may use divided among them; 0 of one process: no opinion.
  int threads() const { return threads_; }

  // Messages from one rank to another with one tag arrive in the order in which they were sent.
  static constexpr int kTags = 1 << 14;  // 0 <= tag < kTags
  [[nodiscard]] Message start_send(Exec&, ConstTensorView, int to, int tag = 0) const;
  [[nodiscard]] Message start_receive(Exec&, TensorView, int from, int tag = 0) const;
  void send(Exec& ex, ConstTensorView t, int to, int tag = 0) const { start_send(ex, t, to, tag).wait(); }
  void receive(Exec& ex, TensorView t, int from, int tag = 0) const { start_receive(ex, t, from, tag).wait(); }

  // Collective: every rank calls them.
  void broadcast(Exec&, TensorView, int root = 0) const;
  void broadcast(Exec&, std::span<const TensorView>, int root = 0) const;  // all in one message where GPUs are linked
  // The sum over the ranks to all of them, f32: ((x0 + x1) + x2) + … in the order of the ranks, so that its bits depend
  // on the values alone, and are the same everywhere.
  void all_reduce_sum(Exec&, TensorView) const;
  // Bands of rows: rank r has the rows [begin[r], begin[r + 1]) of `all`. `mine` may be those rows of `all`; `all` is
  // not looked at but on the root.
  void gather_rows(Exec&, ConstTensorView mine, TensorView all, std::span<const int64_t> begin, int root = 0) const;
  // The same to all ranks; each has its own band in `all` already.
  void all_gather_rows(Exec&, TensorView all, std::span<const int64_t> begin) const;
  void barrier() const;
  // `bytes` of each process of this machine, side by side in the order of node_rank. Collective among those.
  void node_gather(const void* mine, void* all, int bytes) const;

  // After the last call, and by every rank; without it the launcher takes the end of the process for a failure.
  void finish();
  // Ends every process of the launch.
  [[noreturn]] void abort(int exit_code) const;

 private:
  void check(int status) const;
  // What carries a tensor on a GPU; null: host memory does. Collective at the first tensor on one.
  DeviceLink* link(Exec&, const TensorView&) const;
  Message begin_message(Exec&, int other, int tag) const;

  const MpiCalls* calls_ = nullptr;
  Place place_{};
  std::string library_{};
  int threads_ = 0;
  mutable std::shared_ptr<DeviceLink> link_{};
  mutable bool asked_for_link_ = false;
  mutable std::shared_future<void> unlinked_{};
};

const Ranks& one_process();  // for what runs alone

std::string host_name();  // of this machine, for messages

// Begins of the bands when `rows` rows are divided among `parts` as evenly as multiples of `unit` allow: [parts + 1].
std::vector<int64_t> even_bands(int64_t rows, int parts, int64_t unit = 1);

}  // namespace fewbit
