#pragma once
// Drafts by the layer that the model's makers trained for them (src/model/mtp.h), on a cache of its own.
#include "src/model/mtp.h"
#include "src/run/speculate/one_sequence.h"
#include "src/run/speculate/speculation.h"

namespace fewbit {

class MtpHead {
 public:
  // For texts of up to `length` tokens.
  MtpHead(Exec&, const MtpLayer&, const LoadOptions&, int64_t length);
  const std::vector<std::string>& notes() const { return engine_.notes(); }

  // The model's states behind the final norm, [rows, hidden], of positions `first` on.
  void see(int64_t first, ConstTensorView states);
  // Reads what of the text it has not read: position i takes token i + 1 and state i.
  void read(std::span<const int32_t> text);
  // k tokens behind the text, whose states must have been seen but for that of its last token. The first is what the
  // layer was trained for; each further one takes the layer's own state, behind its norm, in place of the model's.
  Draft propose(std::span<const int32_t> text, int64_t k, const SamplerOptions&);
  Drafter drafter();  // this one, which must outlive it
  // Logits f32 [text - 1, vocab] of a text whose states were all seen, and the states behind the layer's norm: for
  // tests.
  Tensor logits_of(std::span<const int32_t> text, Tensor& states);

 private:
  void join(ConstTensorView states, TensorView x);
  ConstTensorView feed(std::span<const int32_t> text, int64_t wanted);

  Exec& ex_;
  Engine engine_;
  OneSequence sequence_;
  Linear joined_;
  Tensor embedding_norm_, hidden_norm_;  // [hidden]
  Tensor states_, own_;                  // [length, hidden] by position: what the layer takes, and its own
  int64_t true_ = 0;                     // positions read whose states were the model's
};

}  // namespace fewbit
