#pragma once
// PeerRows: rows of chunks that two ranks of one machine show each other, each putting its own into memory of the
// other's GPU. Copy engines move them, so that the products beside keep all multiprocessors: NCCL's kernels take some,
// and a product that fills a GPU to the last one then waits for a second wave.
#include <memory>
#include <span>

#include "kernels/exec/peer_memory.h"
#include "src/ranks/ranks.h"

namespace fewbit {

class PeerRows {
 public:
  static constexpr int kRounds = 2;  // whose rows are there at a time

  // Collective. `bytes`: of a rank's rows of one round, as place() counts them. Null on all ranks where they are not
  // two of one machine whose GPUs reach each other, memory is short, or the environment of one says
  // FEWBIT_PEER_COPIES=0.
  static std::unique_ptr<PeerRows> between(const Ranks&, Exec&, int64_t bytes);

  int64_t bytes() const { return bytes_; }
  // Bytes that [rows, features] take in a round.
  static int64_t taken(DType dtype, int64_t rows, int64_t features) {
    return (rows * features * bytes_of(dtype) + kAlign - 1) / kAlign * kAlign;
  }
  // The other rank's rows of a round, `at` bytes from its begin, when the Exec of exchange() has come to its end.
  TensorView place(int round, int64_t at, DType, const Shape&) const;

  struct Part {
    ConstTensorView rows{};  // this rank's
    int64_t at = 0;
  };
  // Collective, in the order of the Exec: this rank's rows to the other, whose own come. Both Execs must be behind all
  // that looks at what the round held before.
  void exchange(Exec&, int round, std::span<const Part>);

 private:
  static constexpr int64_t kAlign = 256;
  static constexpr int64_t kWords = 2 * kAlign;  // in front of the rows: "its place is free", "its rows are there"
  PeerRows(std::unique_ptr<PeerMemory> memory, Device device, int64_t bytes)
      : memory_(std::move(memory)), device_(device), bytes_(bytes) {}
  int64_t begin(int round) const { return kWords + round * bytes_; }

  std::unique_ptr<PeerMemory> memory_;
  Device device_;
  int64_t bytes_;
  uint32_t exchanges_ = 0;
};

}  // namespace fewbit
