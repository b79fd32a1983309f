// Several tokens of one sequence in one pass of the engine, each as a decode step of its own would compute it: the ops
// of many sequences over pages (src/run/paged/ragged.h), with the whole cache as the one page.
#include <algorithm>

#include "kernels/exec/profile_range.h"
#include "kernels/statistics/nll.h"
#include "src/run/engine.h"
#include "src/run/paged/ragged.h"
#include "src/run/paged/rows_alike.h"
#include "src/run/rank_sums.h"

namespace fewbit {

bool Engine::decodes_each() const {
  return options_.batch == 1 && !ex_.on_cuda() && !options_.load.ranks && !is_kivi(options_.load.kv_cache);
}

bool Engine::has_states() const {
  return std::ranges::any_of(recurrent_, [](const RecurrentState& state) { return !state.empty(); });
}

void Engine::set_hooks(PassHooks hooks) {
  FEWBIT_ASSERT(decodes_each());
  hooks_ = std::move(hooks);
}

void Engine::join(TensorView x) const {
  if (hooks_.join) hooks_.join(length_, x);
}

void Engine::show(ConstTensorView x) const {
  if (hooks_.seen) hooks_.seen(length_, final_normed(ex_, spec_, ends_, x));
}

void Engine::cut(int64_t length) {
  FEWBIT_ASSERT(decodes_each() && length >= 0 && length <= length_);
  length_ = length;
  positions_.as<int32_t>()[0] = static_cast<int32_t>(length);
}

void Engine::prepare_each(int64_t tokens) {
  const DType dtype = options_.load.dtype;
  if (!each_) {
    const int64_t rows = rows_of_slice(spec_, blocks_, ends_, dtype);
    each_.emplace(Each{rows, SlotBuffers(ex_, spec_, rows, dtype), ex_.alloc(dtype, {rows, spec_.width()}),
                       ex_.alloc(dtype, {rows, spec_.hidden}), Tensor{}});
  }
  Tensor& logits = each_->logits;
  if (logits.empty() || logits.rows() < tokens) logits = ex_.alloc(DType::f32, {tokens, spec_.vocab});
}

ConstTensorView Engine::decode_each(std::span<const int32_t> ids) {
  FEWBIT_ASSERT(decodes_each() && !ids.empty());
  check_ids(spec_, ids);
  const int64_t count = std::ssize(ids);
  need_room(count);
  const ProfileRange range("decode each");
  prepare_each(count);
  Tensor& logits = each_->logits;
  const int32_t whole = 0;
  const Tensor table = Tensor::host_from<int32_t>(DType::i32, {1, 1}, std::span<const int32_t>(&whole, 1));
  for (int64_t begin = 0, n = 0; begin < count; begin += n) {
    n = std::min(each_->rows, count - begin);
    const auto part = ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    const Tensor tokens = Tensor::host_from<int32_t>(DType::i32, {n}, part);
    Tensor positions = Tensor::host(DType::i32, {n});
    for (int64_t i = 0; i < n; ++i) positions.as<int32_t>()[i] = static_cast<int32_t>(length_ + i);
    const RowRun run{0, n};
    const PagedRows rows{.runs = {&run, 1}, .tables = table, .positions = positions};
    const TensorView x = each_->x.view().row_range(0, n), out = logits.view().row_range(begin, begin + n);
    embed_streams(ex_, spec_, tokens, ends_, x);
    join(x);
    run_blocks(each_->slots, x, positions, tokens, &rows);
    show(x);
    apply_head_normed(ex_, spec_, ends_, x, each_->normed.view().row_range(0, n), out);
    if (spec_.logit_softcap > 0) cap_logits(ex_, spec_.logit_softcap, out);
    length_ += n;
  }
  cut(length_);
  return logits.view().row_range(0, count);
}

}  // namespace fewbit
