#include "src/calib/chunk_share.h"

#include <algorithm>

#include "kernels/exec/exec_point.h"

namespace fewbit {

// The rows of one chunk of every rank, one chunk after the other.
struct ChunkShare::Round {
  int64_t first = 0;             // its first chunk
  std::vector<int64_t> begin{};  // of the ranks' rows, [ranks + 1]
  std::vector<Tensor> rows{};    // of everything that is shown
  ExecPoint there{};             // all of them are there
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

// Brings this rank's chunk of the round and puts all rows of it on their way.
void ChunkShare::send(Round& r, int64_t first, const Bring& bring) const {
  r.first = first;
  r.begin.assign(1, 0);
  for (int64_t chunk = first; chunk < first + ranks_.size(); ++chunk)
    r.begin.push_back(r.begin.back() + (chunk < chunks_.count() ? chunks_.rows(chunk) : 0));
  const auto rank = static_cast<size_t>(ranks_.rank());
  if (const int64_t chunk = first + ranks_.rank(); chunk < chunks_.count()) {
    const Rows own = bring(chunk);
    for (size_t i = 0; i < own.size(); ++i)
      ex_.copy(own[i], r.rows[i].view().row_range(r.begin[rank], r.begin[rank + 1]));
  }
  wait_for(*way_, point_of(ex_));
  for (const Tensor& t : r.rows) ranks_.all_gather_rows(*way_, t.view().row_range(0, r.begin.back()), r.begin);
  r.there = point_of(*way_);
}

void ChunkShare::show_all(const Round& r, const Show& show) const {
  wait_for(ex_, r.there);
  for (size_t k = 0; k + 1 < r.begin.size() && r.begin[k] < r.begin[k + 1]; ++k) {
    Rows rows;
    for (const Tensor& t : r.rows) rows.emplace_back(t.view().row_range(r.begin[k], r.begin[k + 1]));
    show(r.first + static_cast<int64_t>(k), rows);
  }
}

// Two rounds in turn: what brings the next one is given to the stream of the Exec before what looks at this one.
void ChunkShare::each_beside(std::span<const int64_t> features, DType dtype, const Bring& bring,
                             const Show& show) const {
  Round rounds[2];
  for (Round& r : rounds)
    for (const int64_t n : features) r.rows.push_back(ex_.alloc(dtype, {ranks_.size() * chunks_.most_rows(), n}));
  const int64_t step = ranks_.size();
  send(rounds[0], 0, bring);
  for (int64_t first = 0, k = 0; first < chunks_.count(); first += step, k = 1 - k) {
    if (first + step < chunks_.count()) send(rounds[1 - k], first + step, bring);
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
