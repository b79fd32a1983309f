#include "src/ranks/ranks.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "src/core/parallel.h"
#include "src/ranks/device_link.h"
#include "src/ranks/load_module.h"

namespace fewbit {
namespace {

constexpr int kCollectiveTag = Ranks::kTags;

void check_call(const MpiCalls& calls, int status) {
  if (status == 0) return;
  char line[512];
  calls.text(status, line, sizeof line);
  fail(ErrorKind::io, fmt::format("{}: {}", calls.library(), line));
}

// Processors that this process may use, where those that several ranks of the machine may use count in part.
int processors(const MpiCalls& calls, const Place& place) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return 1;
  std::vector<cpu_set_t> all(static_cast<size_t>(place.node_size));
  check_call(calls, calls.node_gather(&mine, all.data(), sizeof mine));
  double share = 0;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mine))
      share += 1.0 / static_cast<double>(
                         std::count_if(all.begin(), all.end(), [&](const cpu_set_t& s) { return CPU_ISSET(cpu, &s); }));
  constexpr double kRounding = 1e-6;  // three thirds are a processor
  return std::max(1, static_cast<int>(share + kRounding));
}

}  // namespace

Message::Message(Message&& o) noexcept
    : calls_(o.calls_),
      request_(std::exchange(o.request_, nullptr)),
      ex_(o.ex_),
      staged_(std::move(o.staged_)),
      to_device_(std::exchange(o.to_device_, {})) {}

Message::~Message() {
  // With an Error on its way the other side may never come; the ranks are about to be ended.
  if (request_ && std::uncaught_exceptions() == 0) bug("a message between ranks was never waited for");
}

void Message::arrived() {
  if (to_device_.data) {
    ex_->copy(staged_, to_device_);
    ex_->sync();  // the staged copy goes now
  }
  staged_.reset();
  to_device_ = {};
}

void Message::wait() {
  if (!request_) return;
  check_call(*calls_, calls_->wait(std::exchange(request_, nullptr)));
  arrived();
}

bool Message::done() {
  if (!request_) return true;
  bool done = false;
  check_call(*calls_, calls_->test(request_, &done));
  if (!done) return false;
  request_ = nullptr;
  arrived();
  return true;
}

Ranks Ranks::join(const Launch& launch) {
  Ranks ranks;
  if (launch.alone()) return ranks;
  const MpiCalls* calls = load_mpi(launch);
  check_call(*calls, calls->start(&ranks.place_));
  ranks.library_ = calls->library();
  if (launch.size > 0 && ranks.size() != launch.size)
    fail(ErrorKind::usage,
         fmt::format("started as one of {} by {}, but {} sees {}: use the mpirun of that MPI, or srun --mpi=pmix",
                     launch.size, launch.by, ranks.library_, ranks.size()));
  ranks.calls_ = calls;
  ranks.threads_ = processors(*calls, ranks.place_);
  return ranks;
}

void Ranks::check(int status) const { check_call(*calls_, status); }

Message Ranks::begin_message(Exec& ex, int other, int tag) const {
  FEWBIT_ASSERT(other >= 0 && other < size() && other != rank());
  FEWBIT_ASSERT(tag >= 0 && tag <= kCollectiveTag);
  Message m;
  m.calls_ = calls_;
  m.ex_ = &ex;
  return m;
}

Message Ranks::start_send(Exec& ex, ConstTensorView t, int to, int tag) const {
  Message m = begin_message(ex, to, tag);
  if (t.device.kind != Device::cpu) {
    m.staged_ = ex.alloc_pinned(t.dtype, t.shape);
    ex.copy(t, m.staged_);
    t = m.staged_;
  }
  check(calls_->send(t.data, t.bytes(), to, tag, &m.request_));
  return m;
}

Message Ranks::start_receive(Exec& ex, TensorView t, int from, int tag) const {
  Message m = begin_message(ex, from, tag);
  if (t.device.kind != Device::cpu) {
    m.staged_ = ex.alloc_pinned(t.dtype, t.shape);
    m.to_device_ = t;
    t = m.staged_;
  }
  check(calls_->receive(t.data, t.bytes(), from, tag, &m.request_));
  return m;
}

DeviceLink* Ranks::link(Exec& ex, const TensorView& t) const {
  if (t.device.kind == Device::cpu) return nullptr;
  if (!asked_for_link_) link_ = DeviceLink::join(*this, ex);
  asked_for_link_ = true;
  return link_.get();
}

bool Ranks::link_devices(Exec& ex) const { return link(ex, {nullptr, DType::u8, {0}, ex.device()}) != nullptr; }

void Ranks::unlink_devices() const {
  asked_for_link_ = false;
  if (link_) unlinked_ = std::async(std::launch::async, [link = std::move(link_)]() mutable { link.reset(); }).share();
}

std::string Ranks::device_library() const { return link_ ? link_->library() : ""; }

void Ranks::broadcast(Exec& ex, TensorView t, int root) const {
  if (alone()) return;
  if (DeviceLink* l = link(ex, t)) return l->broadcast(ex, t, root);
  if (t.device.kind == Device::cpu) return check(calls_->broadcast(t.data, t.bytes(), root));
  const Tensor staged = ex.alloc_pinned(t.dtype, t.shape);
  if (rank() == root) ex.copy(t, staged);
  check(calls_->broadcast(staged.view().data, t.bytes(), root));
  if (rank() == root) return;
  ex.copy(staged, t);
  ex.sync();
}

void Ranks::broadcast(Exec& ex, std::span<const TensorView> tensors, int root) const {
  if (alone() || tensors.empty()) return;
  if (DeviceLink* l = link(ex, tensors.front())) return l->broadcast(ex, tensors, root);
  for (const TensorView& t : tensors) broadcast(ex, t, root);
}

// Each rank sums a band of the elements, all ranks' values of which it is sent, and then has the bands of the others.
void Ranks::all_reduce_sum(Exec& ex, TensorView t) const {
  FEWBIT_ASSERT(t.dtype == DType::f32);
  if (alone()) return;
  if (DeviceLink* l = link(ex, t)) return l->all_reduce_sum(ex, t);
  if (t.device.kind != Device::cpu) {
    const Tensor staged = ex.alloc_pinned(t.dtype, t.shape);
    ex.copy(t, staged);
    all_reduce_sum(ex, staged);
    ex.copy(staged, t);
    return ex.sync();
  }
  const TensorView all = t.reshaped({t.numel()});
  const std::vector<int64_t> begin = even_bands(t.numel(), size());
  const auto band = [&](int r) {
    return all.row_range(begin[static_cast<size_t>(r)], begin[static_cast<size_t>(r) + 1]);
  };
  const TensorView mine = band(rank());
  const Tensor others = Tensor::host(DType::f32, {size(), mine.numel()});
  std::vector<Message> messages;
  std::vector<const float*> values(static_cast<size_t>(size()), mine.as<float>());
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const TensorView row = others.view().row_range(r, r + 1);
    values[static_cast<size_t>(r)] = row.as<float>();
    messages.push_back(start_receive(ex, row, r, kCollectiveTag));
    messages.push_back(start_send(ex, band(r), r, kCollectiveTag));
  }
  for (Message& m : messages) m.wait();
  parallel_for(mine.numel(), 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      float sum = values[0][i];
      for (size_t r = 1; r < values.size(); ++r) sum += values[r][i];
      mine.as<float>()[i] = sum;
    }
  });
  all_gather_rows(ex, all, begin);
}

void Ranks::gather_rows(Exec& ex, ConstTensorView mine, TensorView all, std::span<const int64_t> begin,
                        int root) const {
  FEWBIT_ASSERT(static_cast<int>(begin.size()) == size() + 1);
  const auto rows = [&](int r) { return begin[static_cast<size_t>(r) + 1] - begin[static_cast<size_t>(r)]; };
  FEWBIT_ASSERT(rows(rank()) == 0 || mine.rows() == rows(rank()));
  if (rank() != root) {
    if (rows(rank()) > 0) send(ex, mine, root, kCollectiveTag);
    return;
  }
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    if (rows(r) == 0) continue;
    const TensorView band = all.row_range(begin[static_cast<size_t>(r)], begin[static_cast<size_t>(r) + 1]);
    if (r != rank())
      messages.push_back(start_receive(ex, band, r, kCollectiveTag));
    else if (mine.data != band.data)
      ex.copy(mine, band);
  }
  for (Message& m : messages) m.wait();
}

void Ranks::all_gather_rows(Exec& ex, TensorView all, std::span<const int64_t> begin) const {
  FEWBIT_ASSERT(static_cast<int>(begin.size()) == size() + 1);
  if (alone()) return;
  if (DeviceLink* l = link(ex, all)) return l->all_gather_rows(ex, all, begin);
  const auto band = [&](int r) {
    return all.row_range(begin[static_cast<size_t>(r)], begin[static_cast<size_t>(r) + 1]);
  };
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    if (band(r).rows() > 0) messages.push_back(start_receive(ex, band(r), r, kCollectiveTag));
    if (band(rank()).rows() > 0) messages.push_back(start_send(ex, band(rank()), r, kCollectiveTag));
  }
  for (Message& m : messages) m.wait();
}

void Ranks::barrier() const {
  if (calls_) check(calls_->barrier());
}

void Ranks::node_gather(const void* mine, void* all, int bytes) const {
  if (calls_)
    check(calls_->node_gather(mine, all, bytes));
  else
    std::memcpy(all, mine, static_cast<size_t>(bytes));
}

void Ranks::finish() {
  link_.reset();
  if (unlinked_.valid()) unlinked_.wait();
  if (const MpiCalls* calls = std::exchange(calls_, nullptr)) check_call(*calls, calls->finish());
  place_ = {};
}

void Ranks::abort(int exit_code) const {
  if (calls_) calls_->abort(exit_code);
  std::_Exit(exit_code);
}

const Ranks& one_process() {
  static const Ranks alone;
  return alone;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<int64_t> even_bands(int64_t rows, int parts, int64_t unit) {
  const int64_t units = (rows + unit - 1) / unit;
  std::vector<int64_t> begin;
  for (int64_t p = 0; p <= parts; ++p) begin.push_back(std::min(rows, units * p / parts * unit));
  return begin;
}

}  // namespace fewbit
