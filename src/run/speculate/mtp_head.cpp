#include "src/run/speculate/mtp_head.h"

#include <algorithm>

#include "kernels/model/copy_columns.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

Tensor norm_of(Exec& ex, const MtpLayer& layer, const std::string& name, DType dtype) {
  return upload_as(ex, layer.block.store.expect(name, {DType::f32, DType::f16, DType::bf16}, {layer.block.spec.hidden}),
                   dtype);
}

}  // namespace

MtpHead::MtpHead(Exec& ex, const MtpLayer& layer, const LoadOptions& load, int64_t length)
    : ex_(ex),
      engine_(ex, layer.block, {.load = load, .capacity = length}),
      sequence_(ex, engine_),
      joined_(load_linear(ex, layer.block, layer.joined, load, nullptr)),
      embedding_norm_(norm_of(ex, layer, layer.embedding_norm, load.dtype)),
      hidden_norm_(norm_of(ex, layer, layer.hidden_norm, load.dtype)),
      states_(ex.alloc_zeros(load.dtype, {length, layer.block.spec.hidden})),
      own_(ex.alloc_zeros(load.dtype, {length, layer.block.spec.hidden})) {
  engine_.set_hooks(
      {.join = [this](int64_t first, TensorView x) { join(states_.view().row_range(first, first + x.rows()), x); },
       .seen = [this](
                   int64_t first,
                   ConstTensorView states) { ex_.copy(states, own_.view().row_range(first, first + states.rows())); }});
}

void MtpHead::join(ConstTensorView states, TensorView x) {
  const ModelSpec& spec = engine_.spec();
  const int64_t rows = x.rows(), hidden = spec.hidden;
  const Tensor embedded = ex_.alloc(x.dtype, {rows, hidden}), seen = ex_.alloc(x.dtype, {rows, hidden}),
               both = ex_.alloc(x.dtype, {rows, 2 * hidden});
  norm_rows(ex_, x, embedding_norm_, spec.final_norm_kind, spec.final_norm_eps, embedded);
  norm_rows(ex_, states, hidden_norm_, spec.final_norm_kind, spec.final_norm_eps, seen);
  copy_columns(ex_, embedded, 0, both, 0, hidden);
  copy_columns(ex_, seen, 0, both, hidden, hidden);
  apply(ex_, joined_, both, x);
}

void MtpHead::see(int64_t first, ConstTensorView states) {
  ex_.copy(states, states_.view().row_range(first, first + states.rows()));
}

ConstTensorView MtpHead::feed(std::span<const int32_t> text, int64_t wanted) {
  return sequence_.feed(text.subspan(1), wanted);
}

void MtpHead::read(std::span<const int32_t> text) {
  sequence_.keep(true_);
  if (std::ssize(text) - 2 <= true_) return;
  feed(text.first(text.size() - 1), 0);
  true_ = sequence_.length();
}

Draft MtpHead::propose(std::span<const int32_t> text, int64_t k, const SamplerOptions& options) {
  sequence_.keep(true_);
  std::vector<int32_t> all(text.begin(), text.end());
  Draft draft;
  for (int64_t i = 0; i < k && sequence_.length() < std::ssize(all) - 1; ++i) {
    const ConstTensorView logits = feed(all, 1);
    if (i == 0) true_ = sequence_.length();
    add_drawn(draft, all, {logits.as<float>(), static_cast<size_t>(logits.numel())}, options);
    // What the model would say at the next position is not known yet; the pass that checks the draft writes over it.
    const int64_t next = sequence_.length();
    if (next < states_.rows()) see(next, own_.view().row_range(next - 1, next));
  }
  return draft;
}

Tensor MtpHead::logits_of(std::span<const int32_t> text, Tensor& states) {
  sequence_.keep(0);
  true_ = 0;
  const int64_t rows = std::ssize(text) - 1;
  Tensor logits = ex_.to_host(feed(text, rows));
  states = ex_.to_host(own_.view().row_range(0, rows));
  return logits;
}

Drafter MtpHead::drafter() {
  return {.propose = [this](std::span<const int32_t> text, int64_t k,
                            const SamplerOptions& options) { return propose(text, k, options); },
          .begin = [this](std::span<const int32_t> text) { read(text); },
          .seen = [this](int64_t first, ConstTensorView states) { see(first, states); }};
}

}  // namespace fewbit
