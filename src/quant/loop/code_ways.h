#pragma once
// CodeWays: codes that stayed on the device on their way to the threads that pack them. Each of these has a stream and
// pinned memory of its own as long as it packs.
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/exec/exec.h"
#include "kernels/exec/side_stream.h"

namespace fewbit {

class CodeWays {
  struct Way {
    explicit Way(Exec& ex) : side(ex, 0) {}
    SideStream side;
    Tensor pinned{};  // as much as the largest linear took that went this way
  };

 public:
  // The Exec must outlive it.
  explicit CodeWays(Exec& ex) : ex_(ex) {}

  // Codes in host memory, until it goes.
  class Fetched {
   public:
    Fetched(CodeWays& from, std::unique_ptr<Way> way, TensorView codes)
        : from_(&from), way_(std::move(way)), codes_(codes) {}
    Fetched(Fetched&&) = default;
    ~Fetched() {
      if (way_) from_->give_back(std::move(way_));
    }
    TensorView codes() const { return codes_; }

   private:
    CodeWays* from_;
    std::unique_ptr<Way> way_;
    TensorView codes_;
  };

  // Of codes that the device is done with, u8. Any number of threads may ask.
  Fetched fetch(ConstTensorView codes);

 private:
  void give_back(std::unique_ptr<Way>);

  Exec& ex_;
  std::mutex mutex_{};
  std::vector<std::unique_ptr<Way>> free_{};  // the last was used last, and is the first to be used again
};

}  // namespace fewbit
