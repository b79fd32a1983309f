// The whole model in one pass: embedding, blocks, final norm, head, losses.
#include "src/run/runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cast.h"
#include "kernels/embed.h"
#include "kernels/gemm.h"
#include "kernels/nll.h"
#include "kernels/norm.h"

namespace fewbit {
namespace {

constexpr int64_t kLogitFloats = int64_t{1} << 24;  // 64 MiB of logits at a time

Tensor load_dense(Exec& ex, const Checkpoint& c, const std::string& name, const Shape& shape, DType dtype) {
  const ConstTensorView host = c.store.expect(name, {DType::f32, DType::f16, DType::bf16}, shape);
  Tensor raw = ex.to_device(host);
  if (host.dtype == dtype) return raw;
  Tensor t = ex.alloc(dtype, shape);
  cast(ex, raw, t);
  return t;
}

}  // namespace

Ends load_ends(Exec& ex, const Checkpoint& c, DType dtype) {
  const ModelSpec& s = c.spec;
  Ends e;
  e.embed = load_dense(ex, c, s.embed, {s.vocab, s.hidden}, dtype);
  e.final_norm = load_dense(ex, c, s.final_norm, {s.hidden}, dtype);
  if (!s.tied()) e.lm_head = load_dense(ex, c, s.lm_head, {s.vocab, s.hidden}, dtype);
  return e;
}

void check_ids(const ModelSpec& spec, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= spec.vocab)
      fail(ErrorKind::usage,
           fmt::format("token {} of the input is {}; the model's vocabulary is [0, {}): text and model "
                       "need the same tokenizer",
                       i, ids[i], spec.vocab));
}

Runner::Runner(Exec& ex, const Checkpoint& c, const LoadOptions& o)
    : ex_(ex), spec_(c.spec), options_(o), ends_(load_ends(ex, c, o.dtype)), ropes_(ex, c.spec) {
  for (int64_t layer = 0; layer < spec_.layers; ++layer)
    blocks_.push_back(load_block(ex, c, layer, o, &notes_));
  kv_scales_ = load_kv_scales(ex, c, o.kv_cache, &notes_);
}

// Room for the keys and values of one pass, where they are quantized.
void Runner::need_kv(int64_t seqs, int64_t len) {
  if (options_.kv_cache == KvType::plain || (kv_seqs_ == seqs && kv_len_ == len)) return;
  kv_.clear();
  for (const std::vector<BlockOp>& block : spec_.kinds)
    kv_.push_back(alloc_kv(ex_, *attention_of(block), options_.kv_cache, options_.dtype, seqs, len));
  kv_seqs_ = seqs;
  kv_len_ = len;
}

Tensor Runner::hidden(std::span<const int32_t> ids, int64_t seqs,
                      const std::function<void(int64_t, ConstTensorView)>& observe) {
  const auto tokens = static_cast<int64_t>(ids.size());
  FEWBIT_ASSERT(seqs > 0 && tokens > 0 && tokens % seqs == 0);
  check_ids(spec_, ids);
  const int64_t len = tokens / seqs;
  const Tensor device_ids = ex_.to_device(Tensor::host_from<int32_t>(DType::i32, {tokens}, ids));
  const Tensor where = positions(seqs, len);
  Tensor x = ex_.alloc(options_.dtype, {tokens, spec_.hidden});
  embed(ex_, device_ids, ends_.embed, spec_.embed_scale, x);
  if (observe) observe(0, x);
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    run_block_of(layer, x, where, seqs);
    if (observe) observe(layer + 1, x);
  }
  return x;
}

void Runner::run_blocks(TensorView x, int64_t seqs, int64_t first, int64_t last) {
  const Tensor where = positions(seqs, x.rows() / seqs);
  for (int64_t layer = first; layer < last; ++layer) run_block_of(layer, x, where, seqs);
}

Tensor Runner::positions(int64_t seqs, int64_t len) {
  Tensor host = Tensor::host(DType::i32, {seqs * len});
  for (int64_t t = 0; t < seqs * len; ++t) host.as<int32_t>()[t] = static_cast<int32_t>(t % len);
  return ex_.to_device(host);
}

void Runner::run_block_of(int64_t layer, TensorView x, ConstTensorView positions, int64_t seqs) {
  if (!slots_ || slots_->tokens() < x.rows()) {
    slots_.reset();
    slots_ = std::make_unique<SlotBuffers>(ex_, spec_, x.rows(), options_.dtype);
  }
  need_kv(seqs, x.rows() / seqs);
  const int kind = spec_.kind(layer);
  const KvCache cache = kv_.empty() ? KvCache{} : view_of(kv_[static_cast<size_t>(kind)],
                                                          kv_scales_[static_cast<size_t>(layer)]);
  Activations act = slots_->bind(x, kind);
  run_block(ex_, spec_.block(layer), block(layer), ropes_,
            {.seqs = seqs, .positions = positions, .cache = kv_.empty() ? nullptr : &cache}, act);
}

Tensor Runner::final_normed(ConstTensorView x) {
  Tensor y = ex_.alloc(options_.dtype, x.shape);
  rms_norm(ex_, x, ends_.final_norm, spec_.final_norm_eps,
           spec_.final_norm_kind == NormKind::rms_plus_one ? 1.f : 0.f, y);
  return y;
}

Tensor Runner::logits(ConstTensorView x) {
  const Tensor normed = final_normed(x);
  Tensor y = ex_.alloc(DType::f32, {x.rows(), spec_.vocab});
  gemm(ex_, normed, ends_.head(), {}, y);
  FEWBIT_ASSERT(spec_.logit_softcap == 0);
  return y;
}

std::vector<float> Runner::nll(std::span<const int32_t> ids, int64_t seqs) {
  const Tensor x = hidden(ids, seqs);
  const int64_t tokens = x.rows(), len = tokens / seqs;
  Tensor host_targets = Tensor::host(DType::i32, {tokens});
  for (int64_t t = 0; t < tokens; ++t)
    host_targets.as<int32_t>()[t] = t % len == len - 1 ? -1 : ids[static_cast<size_t>(t + 1)];
  const Tensor targets = ex_.to_device(host_targets), losses = ex_.alloc(DType::f32, {tokens});
  const Tensor normed = final_normed(x);
  const int64_t chunk = std::clamp<int64_t>(kLogitFloats / spec_.vocab, 64, tokens < 64 ? 64 : tokens);
  const Tensor logits = ex_.alloc(DType::f32, {std::min(chunk, tokens), spec_.vocab});
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(tokens, begin + chunk);
    const TensorView rows = logits.view().row_range(0, end - begin);
    gemm(ex_, normed.view().row_range(begin, end), ends_.head(), {}, rows);
    fewbit::nll(ex_, rows, targets.view().row_range(begin, end), spec_.logit_softcap,
                losses.view().row_range(begin, end));
  }
  const Tensor host = ex_.to_host(losses);
  std::vector<float> out;
  out.reserve(static_cast<size_t>(seqs * (len - 1)));
  for (int64_t t = 0; t < tokens; ++t)
    if (t % len != len - 1) out.push_back(host.as<float>()[t]);
  return out;
}

int64_t Runner::weight_bytes() const {
  int64_t n =
      ends_.embed.bytes() + ends_.final_norm.bytes() + (ends_.lm_head.empty() ? 0 : ends_.lm_head.bytes());
  for (const BlockWeights& b : blocks_) {
    for (const auto& [name, l] : b.linears) n += fewbit::weight_bytes(l);
    for (const auto& [name, v] : b.vectors) n += v.bytes();
  }
  return n;
}

}  // namespace fewbit
