// Passes over rows of many sequences. A slice goes through all layers before the next one begins, so that slots and
// choices which outlive a block stay those of its rows.
#include "src/run/paged/paged_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/exec/profile_range.h"
#include "kernels/model/embed.h"
#include "kernels/statistics/nll.h"
#include "src/run/rank_sums.h"

namespace fewbit {
namespace {

PagedOptions checked(const Exec& ex, const PagedOptions& o) {
  if (ex.on_cuda())
    fail(ErrorKind::unsupported,
         "--device: the paged cache of many sequences has no CUDA half in this version; take --device cpu, or "
         "`runner bench --batch` for sequences of equal length on the GPU");
  if (o.load.ranks) fail(ErrorKind::unsupported, "--tp: the paged cache of many sequences runs on one rank only");
  if (o.pages < 1 || o.sequences < 1 || o.longest < 1 || o.pass < 1)
    fail(ErrorKind::usage, fmt::format("{} pages, {} sequences of {} positions, {} rows a pass: each at least 1",
                                       o.pages, o.sequences, o.longest, o.pass));
  return o;
}

Tensor i32(const std::vector<int32_t>& v) {
  return Tensor::host_from<int32_t>(DType::i32, {std::ssize(v)}, std::span<const int32_t>(v));
}

}  // namespace

PagedEngine::PagedEngine(Exec& ex, const Checkpoint& c, const PagedOptions& o)
    : ex_(ex),
      spec_(c.spec),
      options_(checked(ex, o)),
      ends_(load_ends(ex, c, o.load, &notes_)),
      ropes_(ex, spec_, o.longest),
      cache_(ex, spec_,
             {.type = o.load.kv_cache,
              .compute = o.load.dtype,
              .pages = o.pages,
              .sequences = o.sequences,
              .pass = o.pass}),
      room_(alloc_latent_room(ex, spec_, o.load.kv_cache, o.load.dtype, o.longest)),
      slots_(ex, spec_, kRowsInTiles, o.load.dtype) {
  check_cache_type(spec_, o.load.kv_cache);
  LinearNotes linears;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) blocks_.push_back(load_block(ex, c, layer, o.load, &linears));
  for (std::string& line : lines_of(linears)) notes_.push_back(std::move(line));
  kv_scales_ = load_kv_scales(ex, c, o.load.kv_cache, &notes_);
  if (std::string line = long_rope_line(spec_, o.longest); !line.empty()) notes_.push_back(std::move(line));
  x_ = ex.alloc(o.load.dtype, {kRowsInTiles, spec_.width()});
  last_ = ex.alloc(o.load.dtype, {kRowsInTiles, spec_.width()});
  normed_ = ex.alloc(o.load.dtype, {kRowsInTiles, spec_.hidden});
  slice_ = fewbit::rows_of_slice(spec_, blocks_, ends_, o.load.dtype);
}

std::vector<PagedEngine::Slice> PagedEngine::slices_of(std::span<const NewTokens> work) const {
  std::vector<Slice> slices;
  std::vector<int32_t> ids, positions;
  Slice slice;
  const auto close = [&] {
    if (ids.empty()) return;
    slice.ids = i32(ids);
    slice.positions = i32(positions);
    slices.push_back(std::exchange(slice, {}));
    ids.clear(), positions.clear();
  };
  for (const NewTokens& w : work)
    for (int64_t i = 0; i < std::ssize(w.ids); ++i) {
      if (std::ssize(ids) == slice_) close();
      const int64_t row = std::ssize(ids);
      if (row == 0 || i == 0) {
        slice.runs.push_back({row, row});
        slice.sequences.push_back(w.sequence);
      }
      ++slice.runs.back().end;
      ids.push_back(w.ids[static_cast<size_t>(i)]);
      positions.push_back(static_cast<int32_t>(cache_.length(w.sequence) + i));
      if (w.logits_from >= 0 && i >= w.logits_from) slice.wanted.push_back(static_cast<int32_t>(row));
    }
  close();
  return slices;
}

Tensor PagedEngine::tables_of(const Slice& s, size_t group) const {
  size_t longest = 1;
  for (const int sequence : s.sequences) longest = std::max(longest, cache_.table(sequence, group).size());
  Tensor tables = Tensor::host(DType::i32, {std::ssize(s.runs), static_cast<int64_t>(longest)});
  std::fill_n(tables.as<int32_t>(), tables.numel(), -1);
  for (size_t r = 0; r < s.runs.size(); ++r)
    std::ranges::copy(cache_.table(s.sequences[r], group), tables.as<int32_t>() + r * longest);
  return tables;
}

void PagedEngine::run_slice(const Slice& s, TensorView x) {
  std::vector<Tensor> tables;
  for (size_t g = 0; g < cache_.groups(); ++g) tables.push_back(tables_of(s, g));
  embed_streams(ex_, spec_, s.ids, ends_, x);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const int64_t owner = keys_layer(spec_, layer);
    const KvCache cache = view_of(cache_.storage(owner), kv_scales_[static_cast<size_t>(owner)]);
    std::vector<const RecurrentState*> states;
    states.reserve(s.sequences.size());
    for (const int sequence : s.sequences) states.push_back(&cache_.state(layer, sequence));
    const RaggedLayout ragged{
        .rows = {.runs = s.runs, .tables = tables[cache_.group_of(layer)], .positions = s.positions},
        .cache = &cache,
        .latents = &cache_.latents(layer),
        .states = states,
        .room = &room_};
    Activations act = slots_.bind(x, spec_.kind(layer));
    run_block(ex_, spec_.block(layer), blocks_[static_cast<size_t>(layer)], ropes_,
              {.positions = s.positions,
               .turned_keys = turns_keys(options_.load.kv_cache),
               .turned_values = turns_values(options_.load.kv_cache),
               .ids = s.ids,
               .ragged = &ragged},
              act);
  }
}

void PagedEngine::head(const Slice& s, ConstTensorView x, TensorView logits) {
  const int64_t n = std::ssize(s.wanted);
  embed(ex_, i32(s.wanted), x, 1.f, last_.view().row_range(0, n));
  apply_head_normed(ex_, spec_, ends_, last_.view().row_range(0, n), normed_.view().row_range(0, n), logits);
  if (spec_.logit_softcap > 0) cap_logits(ex_, spec_.logit_softcap, logits);
}

ConstTensorView PagedEngine::pass(std::span<const NewTokens> work) {
  const ProfileRange range("ragged pass");
  for (const NewTokens& w : work) check_ids(spec_, w.ids);
  const std::vector<Slice> slices = slices_of(work);
  int64_t rows = 0, done = 0;
  for (const Slice& s : slices) rows += std::ssize(s.wanted);
  if (logits_.empty() || logits_.rows() < rows)
    logits_ = ex_.alloc(DType::f32, {std::max<int64_t>(rows, 1), spec_.vocab});
  for (const Slice& s : slices) {
    const TensorView x = x_.view().row_range(0, s.rows());
    run_slice(s, x);
    if (s.wanted.empty()) continue;
    head(s, x, logits_.view().row_range(done, done + std::ssize(s.wanted)));
    done += std::ssize(s.wanted);
  }
  for (const NewTokens& w : work) cache_.set_length(w.sequence, cache_.length(w.sequence) + std::ssize(w.ids));
  return logits_.view().row_range(0, rows);
}

int64_t PagedEngine::weight_bytes() const {
  int64_t n = head_bytes(ends_) + ends_.final_norm.bytes();
  for (int64_t layer = 0; layer < spec_.layers; ++layer)
    n += fewbit::weight_bytes(spec_.block(layer), blocks_[static_cast<size_t>(layer)], slice_);
  return n;
}

}  // namespace fewbit
