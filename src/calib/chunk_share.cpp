#include "src/calib/chunk_share.h"

#include <algorithm>

#include "kernels/exec/exec_point.h"

namespace fewbit {

// The rows of one chunk of every rank, one chunk after the other.
struct ChunkShare::Round {
  int number = 0;              // of two
  int64_t first = 0;           // its first chunk
  std::vector<Tensor> rows{};  // of everything that is shown; this rank's alone where copies bring the rest
  std::vector<std::vector<TensorView>> of{};  // [rank]: what is shown of its chunk; nothing where it has none
  ExecPoint there{};                          // all of them are there
};

ChunkShare::ChunkShare(Exec& ex, const Ranks& ranks, const Chunks& chunks, bool beside)
    : ex_(ex), ranks_(ranks), chunks_(chunks) {
  if (beside && ex.on_cuda() && !ranks.alone()) way_ = Exec::cuda(ex.device().index);
}

void ChunkShare::each(std::span<const int64_t> features, DType dtype, const Bring& bring, const Show& show) const {
  if (way_ && !features.empty() && ranks_.link_devices(ex_)) return each_beside(features, dtype, bring, show);
  std::vector<Tensor> room;
  if (!alone())
    for (const int64_t n : features) room.push_back(ex_.alloc(dtype, {chunks_.most_rows(), n}));
  for (int64_t first = 0; first < chunks_.count(); first += ranks_.size()) {
    Rows own;
    if (const int64_t chunk = first + ranks_.rank(); chunk < chunks_.count()) own = bring(chunk);
    if (features.empty()) continue;
    const int64_t last = std::min(chunks_.count(), first + ranks_.size());
    for (int64_t chunk = first; chunk < last; ++chunk) {
      Rows rows = own;
      for (size_t i = 0; i < room.size(); ++i) {
        const TensorView here = room[i].view().row_range(0, chunks_.rows(chunk));
        // A broadcast only reads what its root has.
        const TensorView sent =
            mine(chunk) ? TensorView{const_cast<void*>(own[i].data), dtype, here.shape, own[i].device} : here;
        ranks_.broadcast(ex_, sent, owner(chunk));
        if (!mine(chunk)) rows.resize(features.size()), rows[i] = here;
      }
      show(chunk, rows);
    }
  }
}

int64_t ChunkShare::rows_of(int64_t chunk) const { return chunk < chunks_.count() ? chunks_.rows(chunk) : 0; }

// Where the rows of the round's chunks come to lie.
void ChunkShare::lay(Round& r, int64_t first, std::span<const int64_t> features, DType dtype) const {
  r.first = first;
  r.of.assign(static_cast<size_t>(ranks_.size()), {});
  int64_t before = 0;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const int64_t count = rows_of(first + rank);
    int64_t at = 0;
    for (size_t i = 0; count > 0 && i < features.size(); ++i) {
      if (peer_ && rank != ranks_.rank())
        r.of[static_cast<size_t>(rank)].push_back(peer_->place(r.number, at, dtype, {count, features[i]}));
      else
        r.of[static_cast<size_t>(rank)].push_back(r.rows[i].view().row_range(before, before + count));
      at += PeerRows::taken(dtype, chunks_.most_rows(), features[i]);
    }
    if (!peer_) before += count;
  }
}

// Brings this rank's chunk of the round and puts all rows of it on their way.
void ChunkShare::send(Round& r, int64_t first, std::span<const int64_t> features, DType dtype,
                      const Bring& bring) const {
  lay(r, first, features, dtype);
  const std::vector<TensorView>& mine = r.of[static_cast<size_t>(ranks_.rank())];
  if (first + ranks_.rank() < chunks_.count()) {
    const Rows own = bring(first + ranks_.rank());
    for (size_t i = 0; i < own.size(); ++i) ex_.copy(own[i], mine[i]);
  }
  wait_for(*way_, point_of(ex_));
  if (peer_) {
    std::vector<PeerRows::Part> parts;
    for (size_t i = 0, at = 0; i < mine.size(); ++i) {
      parts.push_back({mine[i], static_cast<int64_t>(at)});
      at += static_cast<size_t>(PeerRows::taken(dtype, chunks_.most_rows(), features[i]));
    }
    peer_->exchange(*way_, r.number, parts);
  } else {
    std::vector<int64_t> begin(1, 0);
    for (int rank = 0; rank < ranks_.size(); ++rank) begin.push_back(begin.back() + rows_of(first + rank));
    for (const Tensor& t : r.rows) ranks_.all_gather_rows(*way_, t.view().row_range(0, begin.back()), begin);
  }
  r.there = point_of(*way_);
}

void ChunkShare::show_all(const Round& r, const Show& show) const {
  wait_for(ex_, r.there);
  for (size_t rank = 0; rank < r.of.size(); ++rank)
    if (!r.of[rank].empty()) show(r.first + static_cast<int64_t>(rank), Rows(r.of[rank].begin(), r.of[rank].end()));
}

// Memory into which the other rank copies rows of so many bytes, where there can be some.
void ChunkShare::meet(int64_t bytes) const {
  if (apart_ || (peer_ && peer_->bytes() >= bytes)) return;
  if (peer_) {
    ex_.sync();
    way_->sync();
    ranks_.barrier();  // nobody is at it any more
    peer_.reset();
  }
  peer_ = PeerRows::between(ranks_, ex_, bytes);
  apart_ = !peer_;
}

// Two rounds in turn: what brings the next one is given to the stream of the Exec before what looks at this one.
void ChunkShare::each_beside(std::span<const int64_t> features, DType dtype, const Bring& bring,
                             const Show& show) const {
  int64_t bytes = 0;
  for (const int64_t n : features) bytes += PeerRows::taken(dtype, chunks_.most_rows(), n);
  meet(bytes);
  Round rounds[PeerRows::kRounds] = {{.number = 0}, {.number = 1}};
  for (Round& r : rounds)
    for (const int64_t n : features)
      r.rows.push_back(ex_.alloc(dtype, {(peer_ ? 1 : ranks_.size()) * chunks_.most_rows(), n}));
  const int64_t step = ranks_.size();
  send(rounds[0], 0, features, dtype, bring);
  for (int64_t first = 0, k = 0; first < chunks_.count(); first += step, k = 1 - k) {
    if (first + step < chunks_.count()) send(rounds[1 - k], first + step, features, dtype, bring);
    show_all(rounds[k], show);
  }
}

void ChunkShare::get(const States& states, int64_t begin, int64_t end, TensorView into) const {
  const Chunks& chunks = states.chunks();
  const int64_t step = chunks.per_chunk() * chunks.length;
  for (int64_t at = begin; at < end;) {
    const int64_t chunk = at / step, stop = std::min(end, chunks.begin(chunk) + chunks.rows(chunk));
    const TensorView part = into.row_range(at - begin, stop - begin);
    if (mine(chunk)) states.get(at, stop, part);
    ranks_.broadcast(ex_, part, owner(chunk));
    at = stop;
  }
}

}  // namespace fewbit
