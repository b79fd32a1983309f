#include "src/calib/chunk_share.h"

#include <algorithm>

namespace fewbit {

void ChunkShare::each(std::span<const int64_t> features, DType dtype, const Bring& bring, const Show& show) const {
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
