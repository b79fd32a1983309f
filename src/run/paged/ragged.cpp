// A run is shown to the op as a pass over one sequence: views of its rows, its state, and its latents in one piece.
#include "src/run/paged/ragged.h"

#include <algorithm>
#include <array>
#include <limits>

namespace fewbit {
namespace {

using Member = Tensor LatentStorage::*;
constexpr std::array<Member, 6> kLatents = {&LatentStorage::latent, &LatentStorage::scales, &LatentStorage::k_rope,
                                            &LatentStorage::index,  &LatentStorage::keys,   &LatentStorage::far};

// Those that an op reads and writes; none of most ops.
std::span<const Member> latents_used(const BlockOp& op) {
  const std::span<const Member> all = kLatents;
  if (std::holds_alternative<LatentAttention>(op)) return all.subspan(0, 3);
  if (std::holds_alternative<KeyChoice>(op)) return all.subspan(3, 1);
  if (std::holds_alternative<SharedKeyAttention>(op)) return all.subspan(4, 2);
  return {};
}

// The tensor without owning it.
Tensor borrowed(TensorView v) { return Tensor(v, Deleter{}); }

// Copies positions [begin, end) between the pages of a sequence and one piece, [1, longest, features].
void move_rows(Exec& ex, const Tensor& pages, const int32_t* table, TensorView piece, int64_t begin, int64_t end,
               bool to_pages) {
  const int64_t width = pages.shape()[2];
  const TensorView rows = pages.view().reshaped({pages.shape()[0] * kPagePositions, width});
  const TensorView flat = piece.reshaped({piece.shape[1], width});
  for (int64_t at = begin; at < end;) {
    const int64_t stop = std::min(end, (at / kPagePositions + 1) * kPagePositions);
    const int64_t row = table[at / kPagePositions] * kPagePositions + at % kPagePositions;
    const TensorView page = rows.row_range(row, row + stop - at), own = flat.row_range(at, stop);
    to_pages ? ex.copy(own, page) : ex.copy(page, own);
    at = stop;
  }
}

bool keeps_latents(const BlockOp& op) { return !latents_used(op).empty(); }

// Rows of a run that the op may see at once. Few tokens of a delta rule go step by step, many in products
// (kernels/recurrent/delta_rule_cpu.cpp); latent attention multiplies the queries at hand together.
int64_t rows_at_once(const BlockOp& op) {
  if (std::holds_alternative<DeltaRule>(op)) return 4;
  return keeps_latents(op) ? 1 : std::numeric_limits<int64_t>::max();
}

struct Pass {
  Exec& ex;
  const BlockOp& op;
  const BlockWeights& weights;
  const RopeTables& ropes;
  const TokenLayout& layout;
  Activations& act;

  // Rows [begin, end) of a run, as a pass over its sequence alone.
  void piece(size_t run, int64_t begin, int64_t end, Tensor* chosen) const {
    const RaggedLayout& r = *layout.ragged;
    TokenLayout one = layout;
    one.ragged = nullptr;
    one.seqs = 1;
    one.positions = layout.positions.row_range(begin, end);
    if (layout.ids.data) one.ids = layout.ids.row_range(begin, end);
    one.state = r.states[run];
    one.latents = keeps_latents(op) ? r.room : nullptr;
    Activations own = act;
    for (TensorView& slot : own.slot)
      if (slot.data) slot = slot.row_range(begin, end);
    Tensor choice;
    // What an earlier slice left is of its rows; the ops that look at a choice have one of their own pass.
    if (!std::holds_alternative<KeyChoice>(op) && act.choice && !act.choice->empty() &&
        act.choice->rows() == act[Slot::x].rows())
      choice = borrowed(act.choice->view().row_range(begin, end));
    own.choice = &choice;
    run_op(ex, op, weights, ropes, one, own);
    if (chosen && !choice.empty()) {
      if (chosen->empty()) *chosen = ex.alloc(choice.dtype(), {act[Slot::x].rows(), choice.cols()});
      ex.copy(choice, chosen->view().row_range(begin, end));
    }
  }

  void latents_of(size_t run, int64_t begin, int64_t end, bool to_pages) const {
    const RaggedLayout& r = *layout.ragged;
    if (r.room == r.latents) return;
    for (const Member m : latents_used(op)) {
      const Tensor& pages = (*r.latents).*m;
      if (pages.empty()) continue;
      const TensorView room = ((*r.room).*m).view();
      move_rows(ex, pages, r.rows.table(run), room, begin, end, to_pages);
    }
  }

  void run_all() const {
    const RaggedLayout& r = *layout.ragged;
    const int32_t* positions = r.rows.positions.as<int32_t>();
    const int64_t most = rows_at_once(op);
    Tensor chosen;
    for (size_t i = 0; i < r.rows.runs.size(); ++i) {
      const RowRun run = r.rows.runs[i];
      const int64_t first = positions[run.begin];
      if (keeps_latents(op)) latents_of(i, 0, first, false);
      for (int64_t begin = run.begin; begin < run.end; begin += std::min(most, run.end - begin))
        piece(i, begin, begin + std::min(most, run.end - begin),
              std::holds_alternative<KeyChoice>(op) ? &chosen : nullptr);
      if (keeps_latents(op)) latents_of(i, first, first + run.end - run.begin, true);
    }
    if (std::holds_alternative<KeyChoice>(op) && act.choice) *act.choice = std::move(chosen);
  }
};

}  // namespace

bool goes_by_sequence(const BlockOp& op) {
  return keeps_latents(op) || std::holds_alternative<ShortConv>(op) || std::holds_alternative<DeltaRule>(op) ||
         std::holds_alternative<StateScan>(op) || std::holds_alternative<CompressKeys>(op);
}

bool run_by_sequence(Exec& ex, const BlockOp& op, const BlockWeights& weights, const RopeTables& ropes,
                     const TokenLayout& layout, Activations& act) {
  if (!layout.ragged || !goes_by_sequence(op)) return false;
  Pass{ex, op, weights, ropes, layout, act}.run_all();
  return true;
}

void append_keys(Exec& ex, ConstTensorView k, ConstTensorView v, const TokenLayout& layout) {
  if (const RaggedLayout* r = layout.ragged) return kv_append_paged(ex, k, v, r->rows, *r->cache);
  kv_append(ex, k, v, layout.positions, *layout.cache);
}

void append_and_attend(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const HeadNorms& norms,
                       const RopeTable& table, const TokenLayout& layout, const AttentionArgs& args, TensorView out) {
  if (const RaggedLayout* r = layout.ragged)
    return append_attention_paged(ex, q, k, v, r->rows, norms, table, *r->cache, args, out);
  append_attention(ex, q, k, v, layout.positions, norms, table, *layout.cache, args, out);
}

void attend_pages(Exec& ex, ConstTensorView q, const RaggedLayout& r, const AttentionArgs& a, TensorView out) {
  attention_paged(ex, q, r.rows, *r.cache, a, out);
}

LatentStorage alloc_latent_room(Exec& ex, const ModelSpec& spec, KvType type, DType compute, int64_t longest) {
  LatentStorage room;
  for (const std::vector<BlockOp>& block : spec.kinds) {
    LatentStorage own = alloc_latent(ex, block, type, compute, 1, longest);
    for (const Member m : kLatents) {
      if ((own.*m).empty()) continue;
      FEWBIT_ASSERT((room.*m).empty() || (room.*m).shape() == (own.*m).shape());
      room.*m = std::move(own.*m);
    }
  }
  return room;
}

}  // namespace fewbit
