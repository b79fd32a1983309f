// The whole model in one pass: embedding, blocks, final norm, head, losses.
#include "src/run/runner.h"

#include "src/run/rank_sums.h"

namespace fewbit {

Runner::Runner(Exec& ex, const Checkpoint& c, const LoadOptions& o)
    : ex_(ex), spec_(shared_spec(c, o)), options_(o), ends_(load_ends(ex, c, o, &notes_)), ropes_(ex, c.spec, 0) {
  check_cache_type(spec_, o.kv_cache);
  LinearNotes linears;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) blocks_.push_back(load_block(ex, c, layer, o, &linears));
  for (std::string& line : lines_of(linears)) notes_.push_back(std::move(line));
  kv_scales_ = load_kv_scales(ex, c, o.kv_cache, &notes_, part_of(o));
}

// Room for the keys and values of one pass, where they are quantized.
void Runner::need_kv(int64_t seqs, int64_t len) {
  if (options_.kv_cache == KvType::plain || (kv_seqs_ == seqs && kv_len_ == len)) return;
  kv_.clear();
  latents_.clear();
  for (const std::vector<BlockOp>& block : spec_.kinds) {
    kv_.push_back(own_attention_of(block)
                      ? alloc_kv(ex_, *own_attention_of(block), options_.kv_cache, options_.dtype, seqs, len, len)
                      : KvStorage{});
    latents_.push_back(alloc_latent(ex_, block, options_.kv_cache, options_.dtype, seqs, len));
  }
  kv_seqs_ = seqs;
  kv_len_ = len;
}

Tensor Runner::hidden(std::span<const int32_t> ids, int64_t seqs,
                      const std::function<void(int64_t, ConstTensorView)>& observe) {
  EmbeddedTokens in = embed_tokens(ex_, spec_, ends_, ids, seqs, options_.dtype);
  Tensor x = std::move(in.x);
  if (clock_) clock_->mark("embedding");
  if (observe) observe(0, x);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    run_block_of(layer, x, in.positions, in.ids, seqs);
    if (observe) observe(layer + 1, x);
  }
  return x;
}

void Runner::run_blocks(TensorView x, int64_t seqs, int64_t first, int64_t last) {
  FEWBIT_ASSERT(!keeps_slots(spec_) && !reads_tokens(spec_));
  const Tensor where = sequence_positions(ex_, seqs, x.rows() / seqs);
  for (int64_t layer = first; layer < last; ++layer) run_block_of(layer, x, where, {}, seqs);
}

void Runner::run_block_of(int64_t layer, TensorView x, ConstTensorView positions, ConstTensorView ids, int64_t seqs) {
  if (!slots_ || slots_->tokens() < x.rows()) {
    slots_.reset();
    slots_ = std::make_unique<SlotBuffers>(ex_, spec_, x.rows(), options_.dtype);
  }
  need_kv(seqs, x.rows() / seqs);
  ropes_.fit(x.rows() / seqs);
  const int kind = spec_.kind(layer);
  const int64_t keys = keys_layer(spec_, layer);
  const KvStorage* const kept = kv_.empty() ? nullptr : &kv_[static_cast<size_t>(spec_.kind(keys))];
  const bool in_kivi = is_kivi(options_.kv_cache);
  const KvCache cache = kept && !in_kivi ? view_of(*kept, kv_scales_[static_cast<size_t>(keys)]) : KvCache{};
  const KiviCache kivi = kept && in_kivi ? kivi_of(*kept, options_.kv_cache) : KiviCache{};
  Activations act = slots_->bind(x, kind);
  run_block(ex_, spec_.block(layer), block(layer), ropes_,
            {.seqs = seqs,
             .positions = positions,
             .cache = kept && !in_kivi ? &cache : nullptr,
             .kivi = kept && in_kivi ? &kivi : nullptr,
             .turned_keys = turns_keys(options_.kv_cache),
             .turned_values = turns_values(options_.kv_cache),
             .ids = ids,
             .latents = latents_.empty() ? nullptr : &latents_[static_cast<size_t>(kind)],
             .ranks = options_.ranks},
            act, clock_);
}

Tensor Runner::final_normed(ConstTensorView x) { return fewbit::final_normed(ex_, spec_, ends_, x); }

Tensor Runner::logits(ConstTensorView x) { return logits_of(ex_, spec_, ends_, x); }

std::vector<float> Runner::nll(std::span<const int32_t> ids, int64_t seqs, int64_t first) {
  if (clock_) clock_->restart();
  const Tensor x = hidden(ids, seqs);
  std::vector<float> losses = nll_of_states(ex_, spec_, ends_, x, ids, seqs, first);
  if (clock_) {
    clock_->mark("head");
    clock_->settle();
  }
  return losses;
}

int64_t Runner::weight_bytes() const {
  int64_t n = embedding_bytes(ends_) + ends_.final_norm.bytes() + (ends_.lm_head ? head_bytes(ends_) : 0);
  for (const BlockWeights& b : blocks_) {
    for (const auto& [name, l] : b.linears) n += fewbit::weight_bytes(l);
    for (const auto& [name, v] : b.vectors) n += v.bytes();
  }
  return n;
}

}  // namespace fewbit
