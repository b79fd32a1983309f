#include "src/calib/lanes.h"

#include <memory>

#include "kernels/exec/exec_point.h"
#include "src/core/inline_parallel.h"

namespace fewbit {

Lanes::Lanes(Exec& ex, int count) : ex_(ex) {
  share_memory_alone(ex);
  for (int i = 0; i < count; ++i) lanes_.push_back(ex.on_cuda() ? Exec::cuda(ex.device().index) : Exec::cpu());
  for (Exec& lane : lanes_) threads_.emplace_back([this, &lane] { loop(lane); });
}

Lanes::~Lanes() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  given_.notify_all();
  for (std::thread& t : threads_) t.join();
}

int64_t Lanes::peak_bytes() const {
  int64_t bytes = 0;
  for (const Exec& lane : lanes_) bytes += lane.peak_bytes();
  return bytes;
}

std::future<void> Lanes::give(std::function<void(Exec&)> work) {
  // The point in the Exec's stream is that of now, whenever a lane comes to it.
  auto point = std::make_shared<ExecPoint>(point_of(ex_));
  std::packaged_task<void(Exec&)> task([point, work = std::move(work)](Exec& lane) {
    wait_for(lane, *point);
    work(lane);
    lane.sync();
  });
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(task));
  }
  given_.notify_one();
  return done;
}

void Lanes::loop(Exec& lane) {
  const InlineParallel alone;
  for (;;) {
    std::packaged_task<void(Exec&)> task;
    {
      std::unique_lock lock(mutex_);
      given_.wait(lock, [this] { return ends_ || !work_.empty(); });
      if (work_.empty()) return;
      task = std::move(work_.front());
      work_.pop_front();
    }
    task(lane);
  }
}

}  // namespace fewbit
