// Passes over rows of many sequences. A slice goes through all layers before the next one begins, so that slots and
// choices which outlive a block stay those of its rows.
#include "src/run/paged/paged_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/exec/profile_range.h"
#include "kernels/model/embed.h"
#include "kernels/statistics/nll.h"
#include "src/run/moe.h"
#include "src/run/rank_sums.h"

namespace fewbit {
namespace {

// Rows of every slice of a GPU whose bits are not to depend on the rows beside them, real or none.
constexpr int64_t kInvariantRows = 64;
// Keys of a split of such a row, about: a row alone fills a GPU then from some ten thousand positions on.
constexpr int64_t kInvariantKeys = 1024;
constexpr int64_t kMostHeadDim = 512;  // of attention on a GPU

// What of the model has no form over pages on a GPU; "" for nothing.
std::string missing_on_gpu(const ModelSpec& spec) {
  for (const std::vector<BlockOp>& block : spec.kinds)
    for (const BlockOp& op : block) {
      if (std::holds_alternative<LatentAttention>(op)) return "attention over latents";
      if (std::holds_alternative<SharedKeyAttention>(op)) return "attention over shared keys";
      if (goes_by_sequence(op)) return "layers that keep a state of each sequence";
      if (const auto* a = std::get_if<Attention>(&op); a && a->head_dim > kMostHeadDim)
        return fmt::format("heads of {} values", a->head_dim);
    }
  return "";
}

PagedOptions checked(const Exec& ex, const ModelSpec& spec, const PagedOptions& o) {
  if (const std::string what = ex.on_cuda() ? missing_on_gpu(spec) : ""; !what.empty())
    fail(ErrorKind::unsupported,
         fmt::format("--device: {} in many sequences at once have no CUDA half in this version; take --device cpu, or "
                     "`runner bench --batch` for sequences of equal length on the GPU",
                     what));
  if (ex.on_cuda() && o.batch_invariant && has_moe(spec))
    fail(ErrorKind::unsupported,
         "--batch-invariant: the rows of an expert are those that a pass happens to send to it; leave it out");
  if (o.load.ranks) fail(ErrorKind::unsupported, "--tp: the paged cache of many sequences runs on one rank only");
  check_paged_type("many sequences at once", o.load.kv_cache);
  if (o.pages < 1 || o.sequences < 1 || o.longest < 1 || o.pass < 1)
    fail(ErrorKind::usage, fmt::format("{} pages, {} sequences of {} positions, {} rows a pass: each at least 1",
                                       o.pages, o.sequences, o.longest, o.pass));
  PagedOptions used = o;
  used.batch_invariant = o.batch_invariant && ex.on_cuda();  // a CPU's rows keep that promise in any company
  return used;
}

// Rows of a recorded step: so few recordings serve all numbers of sequences, and rows that are none cost little.
int64_t step_rows(int64_t rows) {
  constexpr int64_t kFew = 8;
  return rows <= kFew ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)))
                      : (rows + kFew - 1) / kFew * kFew;
}

// Rows of the largest slice.
int64_t most_rows(const Exec& ex, const PagedOptions& o) {
  return ex.on_cuda() ? std::max({o.pass, step_rows(o.sequences), kInvariantRows}) : kRowsInTiles;
}

}  // namespace

PagedEngine::PagedEngine(Exec& ex, const Checkpoint& c, const PagedOptions& o)
    : ex_(ex),
      spec_(c.spec),
      options_(checked(ex, c.spec, o)),
      ends_(load_ends(ex, c, o.load, &notes_)),
      ropes_(ex, spec_, o.longest),
      cache_(ex, spec_,
             {.type = o.load.kv_cache,
              .compute = o.load.dtype,
              .pages = o.pages,
              .sequences = o.sequences,
              .pass = o.pass}),
      room_(alloc_latent_room(ex, spec_, o.load.kv_cache, o.load.dtype, o.longest)),
      slots_(ex, spec_, most_rows(ex, o), o.load.dtype) {
  check_cache_type(spec_, o.load.kv_cache);
  LinearNotes linears;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) blocks_.push_back(load_block(ex, c, layer, o.load, &linears));
  for (std::string& line : lines_of(linears)) notes_.push_back(std::move(line));
  kv_scales_ = load_kv_scales(ex, c, o.load.kv_cache, &notes_);
  if (std::string line = long_rope_line(spec_, o.longest); !line.empty()) notes_.push_back(std::move(line));
  const int64_t rows = most_rows(ex, o), steps = std::max(kInvariantRows, step_rows(o.sequences));
  x_ = ex.alloc(o.load.dtype, {rows, spec_.width()});
  last_ = ex.alloc(o.load.dtype, {rows, spec_.width()});
  normed_ = ex.alloc(o.load.dtype, {rows, spec_.hidden});
  rows_ = std::make_unique<PassRows>(ex, cache_, rows, std::max(steps, o.sequences), o.longest);
  slice_ = ex.on_cuda() ? gpu_slice() : fewbit::rows_of_slice(spec_, blocks_, ends_, o.load.dtype);
  if (!ex.on_cuda()) return;
  logits_ = ex.alloc(DType::f32, {steps, spec_.vocab});
  likeliest_ = ex.alloc(DType::i32, {rows});
  host_likeliest_ = ex.alloc_pinned(DType::i32, {rows});
  if (has_moe(spec_)) host_routes_ = prepare_few_experts(ex, spec_, blocks_, o.load.dtype);
}

int64_t PagedEngine::gpu_slice() const { return options_.batch_invariant ? kInvariantRows : slots_.tokens(); }

void PagedEngine::set_batch_invariant(bool on) {
  if (!ex_.on_cuda()) return;
  options_.batch_invariant = on;
  checked(ex_, spec_, options_);
  slice_ = gpu_slice();
  steps_.clear();
}

// On a GPU, where all fits one slice, what goes row by row comes before what goes in tiles.
std::vector<size_t> PagedEngine::in_order(std::span<const NewTokens> work) const {
  std::vector<size_t> all(work.size());
  std::iota(all.begin(), all.end(), size_t{0});
  int64_t rows = 0;
  for (const NewTokens& w : work) rows += std::ssize(w.ids);
  if (ex_.on_cuda() && rows <= slice_)
    std::ranges::stable_partition(all, [&](size_t i) { return std::ssize(work[i].ids) <= kSingleRows; });
  return all;
}

std::vector<PassSlice> PagedEngine::slices_of(std::span<const NewTokens> work) const {
  std::vector<PassSlice> slices;
  PassSlice slice;
  // Logits are in the order of `work`, whatever that of the rows: by the place of a row's run there.
  std::vector<std::pair<size_t, int32_t>> wanted;
  const auto close = [&] {
    if (slice.ids.empty()) return;
    std::ranges::stable_sort(wanted, {}, &std::pair<size_t, int32_t>::first);
    for (const auto& [place, row] : wanted) slice.wanted.push_back(row);
    wanted.clear();
    slices.push_back(std::exchange(slice, {}));
  };
  for (const size_t place : in_order(work)) {
    const NewTokens& w = work[place];
    for (int64_t i = 0; i < std::ssize(w.ids); ++i) {
      if (slice.rows() == slice_) close();
      const int64_t row = slice.rows();
      if (row == 0 || i == 0) {
        slice.runs.push_back({row, row});
        slice.sequences.push_back(w.sequence);
      }
      ++slice.runs.back().end;
      slice.ids.push_back(w.ids[static_cast<size_t>(i)]);
      slice.positions.push_back(static_cast<int32_t>(cache_.length(w.sequence) + i));
      if (w.logits_from >= 0 && i >= w.logits_from) wanted.emplace_back(place, static_cast<int32_t>(row));
    }
  }
  close();
  return slices;
}

void PagedEngine::run_slice(const PassSlice& s, const PlacedRows& rows, TensorView x) {
  embed_streams(ex_, spec_, rows.ids, ends_, x, normed_.view().row_range(0, x.rows()));
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    const int64_t owner = keys_layer(spec_, layer);
    const KvCache cache = view_of(cache_.storage(owner), kv_scales_[static_cast<size_t>(owner)]);
    std::vector<const RecurrentState*> states;
    states.reserve(s.sequences.size());
    for (const int sequence : s.sequences) states.push_back(&cache_.state(layer, sequence));
    const RaggedLayout ragged{.rows = rows.groups[cache_.group_of(layer)],
                              .cache = &cache,
                              .latents = &cache_.latents(layer),
                              .states = states,
                              .room = &room_};
    Activations act = slots_.bind(x, spec_.kind(layer));
    run_block(ex_, spec_.block(layer), blocks_[static_cast<size_t>(layer)], ropes_,
              {.positions = rows.positions,
               .turned_keys = turns_keys(options_.load.kv_cache),
               .turned_values = turns_values(options_.load.kv_cache),
               .ids = rows.ids,
               .ragged = &ragged},
              act);
  }
}

void PagedEngine::head(ConstTensorView x, TensorView logits) {
  apply_head_normed(ex_, spec_, ends_, x, normed_.view().row_range(0, x.rows()), logits);
  if (spec_.logit_softcap > 0) cap_logits(ex_, spec_.logit_softcap, logits);
}

// The rows that a slice has, with those that are none.
int64_t PagedEngine::padded(int64_t rows, bool step) const {
  if (!ex_.on_cuda()) return rows;
  return options_.batch_invariant ? kInvariantRows : step ? step_rows(rows) : rows;
}

bool PagedEngine::recorded(const PassSlice& s, int64_t rows) const {
  if (!ex_.on_cuda() || !options_.graph || !s.decodes() || rows > logits_.rows()) return false;
  return !has_moe(spec_) || (host_routes_.empty() && rows <= kFewTokens);
}

// A step of each sequence, recorded the second time.
void PagedEngine::run_step(const PassSlice& s, const PlacedRows& rows, TensorView logits) {
  Step& step = steps_[{logits.rows(), rows.blocks}];
  const auto body = [&] {
    const TensorView x = x_.view().row_range(0, logits.rows());
    run_slice(s, rows, x);
    head(x, logits);
    argmax(ex_, logits, likeliest_.view().row_range(0, logits.rows()));
  };
  if (step.warm && !step.graph.handle) step.graph = ex_.record(body);
  step.graph.handle ? ex_.replay(step.graph) : body();
  step.warm = true;
}

TensorView PagedEngine::room_for_logits(int64_t rows) {
  Tensor& room = ex_.on_cuda() && rows > logits_.rows() ? more_logits_ : logits_;
  if (room.empty() || room.rows() < rows) room = ex_.alloc(DType::f32, {std::max<int64_t>(rows, 1), spec_.vocab});
  return room.view().row_range(0, rows);
}

ConstTensorView PagedEngine::pass(std::span<const NewTokens> work) {
  const ProfileRange range("ragged pass");
  for (const NewTokens& w : work) check_ids(spec_, w.ids);
  const std::vector<PassSlice> slices = slices_of(work);
  // Rows that are none have logits too, behind the others, until those of the next slice take their place.
  int64_t wanted = 0, rows_with_none = 0;
  for (const PassSlice& s : slices) {
    rows_with_none = std::max(rows_with_none, wanted + padded(std::ssize(s.wanted)));
    wanted += std::ssize(s.wanted);
  }
  const bool step = slices.size() == 1 && recorded(slices[0], padded(wanted, true));
  const TensorView logits = room_for_logits(step ? padded(wanted, true) : rows_with_none);
  int64_t done = 0;
  for (const PassSlice& s : slices) {
    const PlacedRows placed = rows_->place(
        s, {.rows = padded(s.rows(), step), .apart = options_.batch_invariant, .splits = invariant_splits()});
    if (step) {
      run_step(s, placed, logits);
      break;
    }
    const TensorView x = x_.view().row_range(0, placed.ids.numel());
    run_slice(s, placed, x);
    if (s.wanted.empty()) continue;
    const TensorView last = last_.view().row_range(0, placed.wanted.numel());
    embed(ex_, placed.wanted, x, 1.f, last);
    head(last, logits.row_range(done, done + last.rows()));
    done += std::ssize(s.wanted);
  }
  found_ = logits.row_range(0, wanted);
  likeliest_are_made_ = step;
  for (const NewTokens& w : work) cache_.set_length(w.sequence, cache_.length(w.sequence) + std::ssize(w.ids));
  return found_;
}

int64_t PagedEngine::invariant_splits() const {
  return options_.batch_invariant ? (options_.longest + kInvariantKeys - 1) / kInvariantKeys : 0;
}

PassResult PagedEngine::result(const std::vector<uint8_t>& asked) {
  const int64_t rows = found_.data ? found_.rows() : 0;
  FEWBIT_ASSERT(std::ssize(asked) == rows);
  PassResult r;
  r.logits.resize(asked.size());
  const auto row_of = [&](ConstTensorView all, int64_t i) {
    return std::span<const float>(all.row_range(i, i + 1).as<float>(), static_cast<size_t>(spec_.vocab));
  };
  if (!ex_.on_cuda()) {
    for (int64_t i = 0; i < rows; ++i) r.logits[static_cast<size_t>(i)] = row_of(found_, i);
    return r;
  }
  if (rows == 0) {
    ex_.sync();
    return r;
  }
  if (likeliest_.numel() < rows) {
    steps_.clear();  // recordings hold the smaller one
    likeliest_ = ex_.alloc(DType::i32, {rows});
    host_likeliest_ = ex_.alloc_pinned(DType::i32, {rows});
  }
  const TensorView likeliest = likeliest_.view().row_range(0, rows);
  if (!likeliest_are_made_) argmax(ex_, found_, likeliest);
  ex_.copy(likeliest, host_likeliest_.view().row_range(0, rows));
  r.likeliest = {host_likeliest_.as<int32_t>(), static_cast<size_t>(rows)};
  const int64_t count = std::ranges::count_if(asked, [](uint8_t a) { return a != 0; });
  if (count > 0 && (host_logits_.empty() || host_logits_.rows() < count))
    host_logits_ = ex_.alloc_pinned(DType::f32, {count, spec_.vocab});
  // Neighbours in one copy.
  for (int64_t i = 0, to = 0; i < rows;) {
    int64_t end = i;
    while (end < rows && asked[static_cast<size_t>(end)]) ++end;
    if (end > i) ex_.copy(found_.row_range(i, end), host_logits_.view().row_range(to, to + end - i));
    for (; i < end; ++i, ++to) r.logits[static_cast<size_t>(i)] = row_of(host_logits_, to);
    if (i == end) ++i;
  }
  return r;
}

int64_t PagedEngine::weight_bytes() const {
  int64_t n = head_bytes(ends_) + ends_.final_norm.bytes();
  for (int64_t layer = 0; layer < spec_.layers; ++layer)
    n += fewbit::weight_bytes(spec_.block(layer), blocks_[static_cast<size_t>(layer)], slice_);
  return n;
}

}  // namespace fewbit
