#pragma once
// ChunkShare: the chunks of a calibration dealt to the ranks, one after another in turn. A rank runs its own chunks
// forward and keeps the states of those alone; what the statistics need of a chunk it sends to all. Every rank is shown
// all chunks in the order in which one process would bring them.
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "src/calib/peer_rows.h"
#include "src/calib/states.h"
#include "src/ranks/ranks.h"

namespace fewbit {

class ChunkShare {
 public:
  // What is shown of a chunk: tensors of its rows, [rows, features] each.
  using Rows = std::vector<ConstTensorView>;
  using Bring = std::function<Rows(int64_t chunk)>;  // the rows stay until the next call
  using Show = std::function<void(int64_t chunk, const Rows&)>;

  // `beside`: where rows go from GPU to GPU, those of one chunk of every rank are on their way while the next are
  // brought.
  ChunkShare(Exec& ex, const Ranks& ranks, const Chunks& chunks, bool beside = false);

  bool alone() const { return ranks_.alone(); }
  bool mine(int64_t chunk) const { return chunk % ranks_.size() == ranks_.rank(); }
  // Collective. Calls `bring` for the chunks of this rank and `show` for all of them, in order. `features` and `dtype`
  // say what is shown; where that is nothing, no message is sent and `show` is not called.
  void each(std::span<const int64_t> features, DType dtype, const Bring& bring, const Show& show) const;
  // Collective. Tokens [begin, end) of states whose chunks lie with the ranks that own them, to all.
  void get(const States& states, int64_t begin, int64_t end, TensorView into) const;

 private:
  int owner(int64_t chunk) const { return static_cast<int>(chunk % ranks_.size()); }
  void each_beside(std::span<const int64_t> features, DType dtype, const Bring& bring, const Show& show) const;
  struct Round;
  int64_t rows_of(int64_t chunk) const;
  void meet(int64_t bytes) const;
  void lay(Round&, int64_t first, std::span<const int64_t> features, DType dtype) const;
  void send(Round&, int64_t first, std::span<const int64_t> features, DType dtype, const Bring& bring) const;
  void show_all(const Round&, const Show& show) const;

  Exec& ex_;
  const Ranks& ranks_;
  Chunks chunks_;
  mutable std::optional<Exec> way_{};         // with the stream by which rows go beside
  mutable std::unique_ptr<PeerRows> peer_{};  // of two GPUs that reach each other
  mutable bool apart_ = false;                // known: they do not
};

// Rows of the other one of two GPUs whose memory stays from one input to the next (PeerRows).
inline int64_t rows_kept(Device::Kind kind, int ranks, const Chunks& chunks) {
  return kind == Device::cuda && ranks == 2 ? PeerRows::kRounds * chunks.most_rows() : 0;
}
// What NCCL takes of a GPU for its ways to others: on two H200 1.1 to 1.4 GiB.
inline int64_t link_bytes(Device::Kind kind, int ranks) {
  return kind == Device::cuda && ranks > 1 ? int64_t{1280} << 20 : 0;
}
// Rows that are there at a time besides, of all chunks that ranks show each other: on GPUs (`beside`) those of two
// rounds, else of one chunk.
inline int64_t rows_shown(Device::Kind kind, int ranks, const Chunks& chunks) {
  const int64_t at_once = ranks == 1 ? 0 : kind == Device::cuda ? 2 * ranks : 1;
  return at_once * chunks.most_rows() - rows_kept(kind, ranks, chunks);
}

}  // namespace fewbit
