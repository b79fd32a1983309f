#pragma once
// Lanes: threads that each have an Exec of their own on one GPU (ExecPoint orders them). Linears of experts are too
// small to fill it, and what lies between their launches takes longer than these: several at a time do. The bits do not
// depend on how many there are. On the CPU they are threads that compute.
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/exec/exec.h"

namespace fewbit {

// A thread spends half of an expert's time in front of the device and half in launches, which the driver takes from one
// thread at a time: more lanes than these wait for each other.
inline constexpr int kMostLanes = 8;
// What the libraries of a lane take of the device, besides what its work allocates: the workspace that cuBLAS is given,
// 32 MiB, and what the handles of cuBLAS and cuSOLVER allocate themselves (on an H200 with CUDA 13, 1.75 GiB of eight).
inline constexpr int64_t kLaneBytes = int64_t{256} << 20;

class Lanes {
 public:
  // The Exec must outlive it.
  Lanes(Exec&, int count);
  ~Lanes();  // does what was given first
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }
  int64_t peak_bytes() const;  // that they held at their most, on top of the Exec's
  // Work for the next lane that is free, behind all that the Exec has been given so far. The future is ready when the
  // device is done with it, and has its error.
  std::future<void> give(std::function<void(Exec&)> work);

 private:
  void loop(Exec& lane);
  Exec& ex_;
  std::deque<Exec> lanes_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<std::packaged_task<void(Exec&)>> work_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fewbit
