#include "tools/cli/rank_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tools/cli/ranks.h"

namespace fewbit::cli {
namespace {

// What every process of a machine tells the others.
struct Member {
  int rank = 0;
  pid_t pid = 0;
  int board = -1;  // the first one's file that all of them map; -1: it could not be made
};

std::atomic<uint8_t>* mapped(int file, size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::atomic<uint8_t>*>(at);
}

// The first process of a machine makes the file, the others open it through what the system shows of that process.
std::atomic<uint8_t>* board_of(const Ranks& ranks, const Member& first, size_t bytes) {
  if (first.board < 0) return nullptr;
  if (ranks.node_rank() == 0) return mapped(first.board, bytes);
  const int file = ::open(fmt::format("/proc/{}/fd/{}", first.pid, first.board).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  std::atomic<uint8_t>* board = mapped(file, bytes);
  ::close(file);
  return board;
}

}  // namespace

std::unique_ptr<RankWatch> RankWatch::start(const Ranks& ranks, std::string_view program) {
  struct sigaction now {};
  if (ranks.node_size() == 1 || ::sigaction(SIGTERM, nullptr, &now) != 0 || now.sa_handler == SIG_DFL) return nullptr;
  const auto count = static_cast<size_t>(ranks.node_size());
  Member mine{.rank = ranks.rank(), .pid = ::getpid()};
  if (ranks.node_rank() == 0) {
    mine.board = ::memfd_create("fewbit-ranks", MFD_CLOEXEC);
    if (mine.board >= 0 && ::ftruncate(mine.board, static_cast<off_t>(count)) != 0) mine.board = -1;
  }
  std::vector<Member> all(count);
  ranks.node_gather(&mine, all.data(), sizeof mine);
  std::atomic<uint8_t>* board = board_of(ranks, all.front(), count);
  std::vector<Other> others;
  for (int i = 0; i < ranks.node_size(); ++i) {
    const Member& m = all[static_cast<size_t>(i)];
    const int process = i == ranks.node_rank() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, m.pid, 0));
    if (process >= 0) others.push_back({m.rank, i, process});
  }
  ranks.node_gather(&mine, all.data(), sizeof mine);  // all have opened what they want of the others
  if (mine.board >= 0) ::close(mine.board);
  if (!board) return nullptr;
  std::unique_ptr<RankWatch> watch(new RankWatch(ranks, program, board));
  watch->others_ = std::move(others);
  watch->stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (watch->stop_ >= 0) watch->thread_ = std::thread([w = watch.get()] { w->watch(); });
  return watch;
}

RankWatch::RankWatch(const Ranks& ranks, std::string_view program, std::atomic<uint8_t>* spoken)
    : ranks_(ranks), program_(program), spoken_(spoken) {}

RankWatch::~RankWatch() {
  spoken_[ranks_.node_rank()] = kEnds;
  if (thread_.joinable()) {
    ::eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const Other& o : others_) ::close(o.process);
  if (stop_ >= 0) ::close(stop_);
}

void RankWatch::fails() { spoken_[ranks_.node_rank()] = kFails; }

bool RankWatch::another_is_gone() const {
  std::vector<pollfd> polled;
  polled.reserve(others_.size());
  for (const Other& o : others_) polled.push_back({.fd = o.process, .events = POLLIN, .revents = 0});
  constexpr int kMilliseconds = 50;  // a process closes its sockets before it is gone
  ::poll(polled.data(), polled.size(), kMilliseconds);
  return std::any_of(others_.begin(), others_.end(), [this](const Other& o) { return killed(o); });
}

bool RankWatch::gone(const Other& o) const {
  pollfd p{.fd = o.process, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, 0) == 1;
}

// Gone, not in order, and not ended by the launcher because another one failed.
bool RankWatch::killed(const Other& dead) const {
  return gone(dead) && spoken_[dead.node_rank] == kSilent &&
         std::none_of(others_.begin(), others_.end(),
                      [this](const Other& o) { return spoken_[o.node_rank] == kFails; });
}

// Of those that are left the first says it, for all see it.
void RankWatch::watch() {
  std::vector<Other> watched = others_;
  for (;;) {
    std::vector<pollfd> polled = {{.fd = stop_, .events = POLLIN, .revents = 0}};
    for (const Other& o : watched) polled.push_back({.fd = o.process, .events = POLLIN, .revents = 0});
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;  // a signal
    if (polled.front().revents != 0) return;
    std::vector<Other> left;
    for (size_t i = 0; i < watched.size(); ++i) {
      const Other& o = watched[i];
      if (polled[i + 1].revents == 0)
        left.push_back(o);
      else if (killed(o))
        say(o);
    }
    watched = std::move(left);
  }
}

void RankWatch::say(const Other& dead) {
  spoken_[ranks_.node_rank()] = kOfAnother;
  const bool first = std::none_of(others_.begin(), others_.end(),
                                  [this](const Other& o) { return o.node_rank < ranks_.node_rank() && !gone(o); });
  if (first) {
    const std::string place = reached_place();
    fmt::print(stderr, "{}: rank {} on {} is gone without a word (killed, or out of memory){}{}\n", program_, dead.rank,
               host_name(), place.empty() ? "" : " in " + place,
               program_ == "quantize" ? "; what is sealed is kept: --resume goes on there" : "");
    std::fflush(stderr);
  }
  // The line comes first, and the launcher sees the end of the other one before that of this one.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::_Exit(1);
}

}  // namespace fewbit::cli
