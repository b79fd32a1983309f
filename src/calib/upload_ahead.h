#pragma once
// UploadAhead: stored weights that a device will want next, brought there by threads of its own while the device
// computes. They lie in a few slots until they are taken, or for good in memory of their own; what was not foreseen is
// uploaded as ever, so that it decides how long a run takes and nothing else.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/exec/side_stream.h"

namespace fewbit {

class UploadAhead {
 public:
  static constexpr int kSlots = 3;
  // Threads that bring weights into memory of their own: one copies out of a mapped file at some 1.3 GB/s, and two GPUs
  // go through the experts of a block faster than that.
  static constexpr int kWholeThreads = 3;
  // Takes kSlots * slot_bytes of the device; nothing, and does nothing, with 0. The Exec must outlive it.
  UploadAhead(Exec&, int64_t slot_bytes);
  ~UploadAhead();
  UploadAhead(const UploadAhead&) = delete;
  UploadAhead& operator=(const UploadAhead&) = delete;

  // This host memory, which must stay, will be taken behind all that was foreseen before; once for each call.
  void foresee(ConstTensorView host);
  // The same of several, each into memory of its own, which is taken of the device at once and becomes the values where
  // these are wanted in the stored type. Many small weights that are wanted together do not wait for slots. Several
  // threads bring them; `read` is told by them which one nobody reads from host memory any more.
  void foresee_whole(std::span<const ConstTensorView> hosts, const std::function<void(size_t)>& read = {});
  // The values in `dtype` on the device, where they are on their way; else empty. What was foreseen in front of it is
  // given up. Rethrows the error of a copy.
  Tensor take(ConstTensorView host, DType dtype);

 private:
  enum class State : uint8_t { waits, copied, there };
  struct Item {
    ConstTensorView host{};
    State state = State::waits;
    int slot = -1;
    Tensor whole{};  // its own memory; then it needs no slot
    std::function<void()> read{};
  };
  void begin_thread(bool only_whole);
  void loop(SideStream&, bool only_whole);
  bool bring(std::unique_lock<std::mutex>&, SideStream&, bool only_whole);
  void copy(SideStream&, const Item&);
  void give_up_front(std::unique_lock<std::mutex>&);

  Exec& ex_;
  const int64_t slot_bytes_;
  Tensor slots_{};                  // [kSlots, slot_bytes] u8
  std::deque<SideStream> sides_{};  // of the threads; the first has the slots
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;      // in the order in which they will be taken
  std::deque<int> free_slots_;  // a fence of the side stream says from when on
  bool ends_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_{};
};

}  // namespace fewbit
