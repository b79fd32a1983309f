#include "src/run/speculate/one_sequence.h"

namespace fewbit {

OneSequence::OneSequence(Exec& ex, Engine& engine) : ex_(ex), engine_(engine) {
  FEWBIT_ASSERT(engine.decodes_each());
  engine.reset();
}

ConstTensorView OneSequence::feed(std::span<const int32_t> text, int64_t wanted) {
  FEWBIT_ASSERT(std::ssize(text) > length() && std::ssize(text) - length() >= wanted);
  const std::span<const int32_t> fresh = text.subspan(static_cast<size_t>(length()));
  if (length() == 0 && wanted <= 1) return engine_.prefill(fresh);
  if (fresh.size() == 1) return engine_.decode(Tensor::host_from<int32_t>(DType::i32, {1}, fresh));
  const ConstTensorView logits = engine_.decode_each(fresh);
  return logits.row_range(logits.rows() - wanted, logits.rows());
}

void OneSequence::mark() {
  if (!engine_.has_states()) return;
  marked_ = length();
  const bool first = saved_.empty();
  for (int64_t layer = 0; layer < engine_.spec().layers; ++layer) {
    if (first) saved_.emplace_back();
    for (const auto& [name, state] : engine_.state(layer)) {
      Tensor& to = saved_[static_cast<size_t>(layer)][name];
      if (first) to = ex_.alloc(state.dtype(), state.shape());
      ex_.copy(state, to);
    }
  }
}

void OneSequence::keep(int64_t length) {
  FEWBIT_ASSERT(length <= this->length());
  if (length < this->length() && engine_.has_states()) {
    FEWBIT_ASSERT(!saved_.empty() && marked_ <= length);
    for (int64_t layer = 0; layer < engine_.spec().layers; ++layer)
      for (const auto& [name, state] : engine_.state(layer))
        ex_.copy(saved_[static_cast<size_t>(layer)].at(name), state);
    length = marked_;
  }
  engine_.cut(length);
}

}  // namespace fewbit
