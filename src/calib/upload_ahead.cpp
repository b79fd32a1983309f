#include "src/calib/upload_ahead.h"

#include <algorithm>

#include "kernels/model/cast.h"
#include "src/core/inline_parallel.h"

namespace fewbit {

UploadAhead::UploadAhead(Exec& ex, int64_t slot_bytes) : ex_(ex), slot_bytes_(slot_bytes) {
  if (slot_bytes == 0) return;
  slots_ = ex.alloc(DType::u8, {kSlots, slot_bytes});
  ex.sync();  // the memory belongs to the Exec's stream until then
  for (int i = 0; i < kSlots; ++i) free_slots_.push_back(i);
  begin_thread(false);
}

void UploadAhead::begin_thread(bool only_whole) {
  SideStream& side = sides_.emplace_back(ex_, kSlots + 1);
  threads_.emplace_back([this, &side, only_whole] { loop(side, only_whole); });
}

UploadAhead::~UploadAhead() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void UploadAhead::foresee(ConstTensorView host) {
  if (slot_bytes_ == 0 || host.bytes() > slot_bytes_) return;
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({.host = host});
  }
  changed_.notify_all();
}

void UploadAhead::foresee_whole(std::span<const ConstTensorView> hosts, const std::function<void(size_t)>& read) {
  if (slot_bytes_ == 0 || hosts.empty()) return;
  while (threads_.size() < kWholeThreads) begin_thread(true);
  std::deque<Item> more;
  for (size_t i = 0; i < hosts.size(); ++i) {
    more.push_back({.host = hosts[i], .whole = ex_.alloc(hosts[i].dtype, hosts[i].shape)});
    if (read) more.back().read = [read, i] { read(i); };
  }
  {
    const std::lock_guard lock(mutex_);
    for (SideStream& side : sides_) side.fence(kSlots);  // the memory belongs to the Exec's stream until then
    for (Item& item : more) items_.push_back(std::move(item));
  }
  changed_.notify_all();
}

void UploadAhead::loop(SideStream& side, bool only_whole) {
  const InlineParallel alone;
  std::unique_lock lock(mutex_);
  while (!ends_)
    if (!bring(lock, side, only_whole)) changed_.wait(lock);
}

// Copies the first item that waits, where a slot is free; false where there is nothing to do.
bool UploadAhead::bring(std::unique_lock<std::mutex>& lock, SideStream& side, bool only_whole) {
  const auto next = std::find_if(items_.begin(), items_.end(),
                                 [&](const Item& i) { return i.state == State::waits && (i.whole || !only_whole); });
  if (next == items_.end() || error_) return false;
  Item& item = *next;  // stays where it is: others come behind it, and it is not taken before it is there
  if (item.whole) {
    side.wait(kSlots);
  } else {
    if (free_slots_.empty()) return false;
    item.slot = free_slots_.front();
    free_slots_.pop_front();
    side.wait(item.slot);
  }
  item.state = State::copied;
  lock.unlock();
  std::exception_ptr error;
  try {
    copy(side, item);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  item.state = State::there;
  if (error) error_ = error;
  changed_.notify_all();
  return true;
}

void UploadAhead::copy(SideStream& side, const Item& item) {
  if (item.whole) {
    side.copy(item.host, item.whole);
    if (item.read) item.read();
    return;
  }
  const TensorView slot = slots_.view().row_range(item.slot, item.slot + 1).reshaped({slot_bytes_});
  side.copy({item.host.data, DType::u8, {item.host.bytes()}, item.host.device}, slot.row_range(0, item.host.bytes()));
}

void UploadAhead::give_up_front(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return items_.front().state != State::copied; });
  if (items_.front().slot >= 0) free_slots_.push_back(items_.front().slot);
  items_.pop_front();
}

Tensor UploadAhead::take(ConstTensorView host, DType dtype) {
  if (slot_bytes_ == 0) return {};
  std::unique_lock lock(mutex_);
  const auto same = [&](const Item& i) { return i.host.data == host.data && i.host.bytes() == host.bytes(); };
  const auto found = std::find_if(items_.begin(), items_.end(), same);
  if (found == items_.end()) return {};
  for (auto before = found - items_.begin(); before > 0; --before) give_up_front(lock);
  Item& item = items_.front();
  if (item.state == State::waits) {  // sooner taken by all threads
    items_.pop_front();
    return {};
  }
  changed_.wait(lock, [&] { return item.state == State::there; });
  if (error_) std::rethrow_exception(error_);
  const int slot = item.slot;
  Tensor whole = std::move(item.whole);
  if (whole) items_.pop_front();
  if (whole && host.dtype == dtype) return whole;
  lock.unlock();
  Tensor values = ex_.alloc(dtype, host.shape);
  if (whole) {
    cast(ex_, whole, values);
    return values;
  }
  ConstTensorView there = slots_.view().row_range(slot, slot + 1);
  there = {there.data, host.dtype, host.shape, there.device};
  if (host.dtype == dtype)
    ex_.copy(there, values);
  else
    cast(ex_, there, values);
  sides_.front().fence(slot);
  lock.lock();
  items_.pop_front();
  free_slots_.push_back(slot);
  lock.unlock();
  changed_.notify_all();
  return values;
}

}  // namespace fewbit
