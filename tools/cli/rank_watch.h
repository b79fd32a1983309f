#pragma once
// RankWatch: sees at once that another rank of this machine is gone, and says which one, in place of a launcher that
// only names a signal.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "src/ranks/ranks.h"

namespace fewbit::cli {

class RankWatch {
 public:
  // Collective among the ranks of this machine. Null where nothing can be watched: a rank that has the machine for
  // itself, a system without what it takes (memfd_create, pidfd_open: Linux 5.3), or a program that ends at once by the
  // SIGTERM with which a launcher ends all others when one is gone.
  static std::unique_ptr<RankWatch> start(const Ranks&, std::string_view program);
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;
  // Tells the others that this process ends in order.
  ~RankWatch();

  // This process is about to say why it fails.
  void fails();
  // Whether one of the others is gone and said nothing; then this process ends soon, with a line about that one.
  bool another_is_gone() const;

 private:
  // What a process said, or is about to say, of its end.
  enum Spoken : uint8_t { kSilent, kEnds, kFails, kOfAnother };
  struct Other {
    int rank, node_rank, process;  // process: a pidfd
  };
  RankWatch(const Ranks&, std::string_view program, std::atomic<uint8_t>* spoken);
  void watch();
  bool gone(const Other&) const;
  bool killed(const Other&) const;
  [[noreturn]] void say(const Other&);

  const Ranks& ranks_;
  const std::string program_;
  std::atomic<uint8_t>* const spoken_;  // [node_size], shared by the processes of this machine
  std::vector<Other> others_{};
  int stop_ = -1;  // an eventfd
  std::thread thread_{};
};

}  // namespace fewbit::cli
