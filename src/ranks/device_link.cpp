#include "src/ranks/device_link.h"

#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <string_view>
#include <vector>

#include "kernels/exec/native_stream.h"
#include "kernels/model/add.h"
#include "src/ranks/exchange.h"
#include "src/ranks/load_module.h"

namespace fewbit {
namespace {

bool turned_off() {
  const char* nccl = std::getenv("FEWBIT_NCCL");
  return nccl && std::string_view(nccl) == "0";
}

void check_call(const NcclCalls& calls, int status) {
  if (status == 0) return;
  char line[512];
  calls.text(status, line, sizeof line);
  fail(ErrorKind::device, fmt::format("NCCL: {} (FEWBIT_NCCL=0 does without it)", line));
}

// Whether all ranks have GPUs of their own, by machine and place.
bool all_differ(const Ranks& ranks, const std::string& mine) {
  std::set<std::string> gpus;
  for (int r = 0; r < ranks.size(); ++r) gpus.insert(text_of_root(ranks, mine, r));
  return static_cast<int>(gpus.size()) == ranks.size();
}

}  // namespace

void DeviceLink::check(int status) const { check_call(calls_, status); }

std::shared_ptr<DeviceLink> DeviceLink::join(const Ranks& ranks, Exec& ex) {
  const NcclCalls* calls = turned_off() ? nullptr : load_nccl();
  if (!true_for_all(ranks, calls != nullptr)) return nullptr;
  char place[64] = "";
  check_call(*calls, calls->gpu(ex.device().index, place, sizeof place));
  if (!all_differ(ranks, host_name() + " " + place)) return nullptr;
  NcclId id{};
  if (ranks.rank() == 0) check_call(*calls, calls->make_id(&id));
  bytes_of_root(ranks, id);
  std::shared_ptr<DeviceLink> link(new DeviceLink(*calls, ranks.rank(), ranks.size()));
  link->started_ = std::async(std::launch::async, [calls, id, l = link.get(), device = ex.device().index] {
    return calls->start(&id, l->rank_, l->size_, device, &l->link_);
  });
  return link;
}

void* DeviceLink::way() {
  if (started_.valid()) check(started_.get());
  return link_;
}

DeviceLink::~DeviceLink() {
  if (started_.valid()) started_.wait();
  if (link_) calls_.finish(link_);
}

void DeviceLink::broadcast(Exec& ex, TensorView t, int root) {
  if (t.bytes() > 0) check(calls_.broadcast(way(), t.data, t.bytes(), root, native_stream(ex)));
}

void DeviceLink::broadcast(Exec& ex, std::span<const TensorView> tensors, int root) {
  void* const link = way();
  check(calls_.begin_group());
  for (const TensorView& t : tensors)
    if (t.bytes() > 0) check(calls_.broadcast(link, t.data, t.bytes(), root, native_stream(ex)));
  check(calls_.end_group());
}

void DeviceLink::all_gather_rows(Exec& ex, TensorView all, std::span<const int64_t> begin) {
  const auto band = [&](int r) {
    return all.row_range(begin[static_cast<size_t>(r)], begin[static_cast<size_t>(r) + 1]);
  };
  void *const stream = native_stream(ex), *const link = way();
  check(calls_.begin_group());
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (band(rank_).bytes() > 0) check(calls_.send(link, band(rank_).data, band(rank_).bytes(), r, stream));
    if (band(r).bytes() > 0) check(calls_.receive(link, band(r).data, band(r).bytes(), r, stream));
  }
  check(calls_.end_group());
}

TensorView DeviceLink::room(Exec& ex, int64_t count) {
  if (rooms_.empty() || rooms_.back().numel() < count) rooms_.push_back(ex.alloc(DType::f32, {count}));
  return rooms_.back().view().row_range(0, count);
}

// Each rank sums a band of the elements in the order of the ranks, which NCCL's own sum would not keep.
void DeviceLink::all_reduce_sum(Exec& ex, TensorView t) {
  const TensorView all = t.reshaped({t.numel()});
  const std::vector<int64_t> begin = even_bands(t.numel(), size_);
  const auto band = [&](int r) {
    return all.row_range(begin[static_cast<size_t>(r)], begin[static_cast<size_t>(r) + 1]);
  };
  const TensorView mine = band(rank_);
  const TensorView values = room(ex, size_ * mine.numel());
  const auto of = [&](int r) { return values.row_range(r * mine.numel(), (r + 1) * mine.numel()); };
  void *const stream = native_stream(ex), *const link = way();
  check(calls_.begin_group());
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (band(r).bytes() > 0) check(calls_.send(link, band(r).data, band(r).bytes(), r, stream));
    if (mine.bytes() > 0) check(calls_.receive(link, of(r).data, mine.bytes(), r, stream));
  }
  check(calls_.end_group());
  if (mine.numel() > 0) {
    ex.copy(mine, of(rank_));
    for (int r = 1; r < size_; ++r) add(ex, of(r), of(0));
    ex.copy(of(0), mine);
  }
  all_gather_rows(ex, all, begin);
}

}  // namespace fewbit
