// Embedding, final norm, head, losses.
#include "src/run/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/model/copy_columns.h"
#include "kernels/model/embed.h"
#include "kernels/model/norm.h"
#include "kernels/products/blocks/block_gemm.h"
#include "kernels/products/gemm.h"
#include "kernels/statistics/nll.h"
#include "kernels/streams/streams.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/foreign/foreign.h"
#include "src/run/block.h"
#include "src/run/gguf/gguf_linear.h"
#include "src/run/gguf/int8_inputs.h"
#include "src/run/rank_sums.h"
#include "src/run/rounded_head.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

Tensor load_dense(Exec& ex, const Checkpoint& c, const std::string& name, const Shape& shape, DType dtype) {
  return upload_stored(ex, c.store, name, shape, dtype);
}

// y [rows, hidden] = the final norm of x [rows, width]; several residual streams become one there first.
void norm_rows(Exec& ex, const ModelSpec& s, const Ends& e, ConstTensorView x, TensorView y) {
  if (s.streams > 1)
    read_streams(ex, x, {.fn = e.streams_fn, .base = e.streams_base, .scale = e.streams_scale},
                 {.streams = s.streams, .norm_eps = s.final_norm_eps, .eps = s.streams_eps}, y, {});
  norm_rows(ex, s.streams > 1 ? y : x, e.final_norm, s.final_norm_kind, s.final_norm_eps, y);
}

// What reading an end has made goes when this does, unless other ranks may be reading it.
struct Released {
  const Checkpoint& c;
  const std::string& linear;
  bool alone;
  Released(const Checkpoint& from, const std::string& name, const LoadOptions& o)
      : c(from), linear(name), alone(o.ranks == nullptr) {}
  ~Released() {
    if (alone) release_linear(c, linear);
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
};

void load_streams(Exec& ex, const Checkpoint& c, Ends& e) {
  const ModelSpec& s = c.spec;
  if (s.streams == 1) return;
  const auto load = [&](const char* part, const Shape& shape) {
    return load_dense(ex, c, s.streams_name + part, shape, DType::f32);
  };
  e.streams_fn = load("_fn", {s.streams, s.width()});
  e.streams_base = load("_base", {s.streams});
  e.streams_scale = load("_scale", {1});
}

}  // namespace

Ends load_final_norm(Exec& ex, const Checkpoint& c, DType dtype) {
  Ends e{.embed = {}, .final_norm = load_dense(ex, c, c.spec.final_norm, {c.spec.hidden}, dtype), .lm_head = {}};
  load_streams(ex, c, e);
  return e;
}

namespace {

// rows(to) writes the embeddings, [ids, hidden].
template <class Rows>
void in_every_stream(Exec& ex, const ModelSpec& s, TensorView x, TensorView room, const Rows& rows) {
  if (s.streams == 1) return rows(x);
  const Tensor own = room.data ? Tensor{} : ex.alloc(x.dtype, {x.rows(), s.hidden});
  const TensorView one = room.data ? room : own.view();
  rows(one);
  for (int64_t i = 0; i < s.streams; ++i) copy_columns(ex, one, 0, x, i * s.hidden, s.hidden);
}

}  // namespace

void embed_streams(Exec& ex, const ModelSpec& s, ConstTensorView ids, ConstTensorView table, TensorView x,
                   TensorView room) {
  in_every_stream(ex, s, x, room, [&](TensorView to) { embed(ex, ids, table, s.embed_scale, to); });
}

void embed_streams(Exec& ex, const ModelSpec& s, ConstTensorView ids, const Ends& e, TensorView x, TensorView room) {
  if (!e.embed_blocks) return embed_streams(ex, s, ids, e.embed, x, room);
  const BlockView table = view_of(std::get<GgufLinear>(*e.embed_blocks));
  in_every_stream(ex, s, x, room, [&](TensorView to) { cpu::block_rows(ex, ids, table, s.embed_scale, to); });
}

Tensor embed_rows(Exec& ex, const Checkpoint& c, std::span<const int32_t> ids, DType dtype) {
  const ModelSpec& s = c.spec;
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<int32_t> at(ids.begin(), ids.end());
  Tensor table;
  if (const NamedLinear l = ends_of(s).front(); c.packed(l.name)) {
    table = upload_as(ex, c.values(l), dtype);
  } else {
    const ConstTensorView stored = c.store.expect(s.embed, {DType::f32, DType::f16, DType::bf16}, {s.vocab, s.hidden});
    const Tensor rows = Tensor::host(stored.dtype, {count, s.hidden});
    const int64_t bytes = s.hidden * bytes_of(stored.dtype);
    for (int64_t i = 0; i < count; ++i)  // by bytes: a tensor of a file lies at any address
      std::memcpy(static_cast<char*>(rows.view().data) + i * bytes,
                  static_cast<const char*>(stored.data) + ids[static_cast<size_t>(i)] * bytes,
                  static_cast<size_t>(bytes));
    c.store.forget(s.embed);
    table = upload_as(ex, rows, dtype);
    std::iota(at.begin(), at.end(), 0);
  }
  Tensor x = ex.alloc(dtype, {count, s.width()});
  embed_streams(ex, s, ex.to_device(Tensor::host_from<int32_t>(DType::i32, {count}, at)), table, x);
  return x;
}

Ends load_ends(Exec& ex, const Checkpoint& c, const LoadOptions& o, std::vector<std::string>* notes) {
  const ModelSpec& s = c.spec;
  // Of the whole model: whatever runs it loads its ends, once.
  check_acts(ex, c, o);
  if (std::string note = unrounded_inputs_note(c.config.text()); notes && !note.empty())
    notes->push_back(std::move(note));
  Ends e;
  for (const NamedLinear& l : ends_of(s)) {
    const Released after(c, l.name, o);
    if (l.name + ".weight" == s.embed) {
      // A tied embedding that is asked to be a dense head is one table of values.
      if (runs_as_blocks(ex, c, l.name, o) && !(s.tied() && o.head == HeadType::dense))
        e.embed_blocks = gguf_linear(ex, c, l, {}, o.acts);
      else
        e.embed = c.packed(l.name) ? upload_as(ex, c.values(l), o.dtype)
                                   : load_dense(ex, c, s.embed, {s.vocab, s.hidden}, o.dtype);
      if (!s.tied()) continue;
    }
    if (const std::string why = refuses_head(ex, c, l, o); !why.empty())
      fail(ErrorKind::usage, fmt::format("{}: --head {}: {}", l.name, name_of(o.head), why));
    if (o.head == HeadType::fp8 || o.head == HeadType::int4) {
      e.lm_head = rounded_head(ex, c, l, o);
      if (notes)
        notes->push_back(fmt::format("{}: rounded to {} when it was loaded, not the checkpoint's own{}", l.name,
                                     name_of(o.head), s.tied() ? "; the embedding stays" : ""));
      continue;
    }
    if (s.tied()) continue;
    std::string note;
    if (o.head == HeadType::dense)
      e.lm_head = DenseLinear{.weight = c.packed(l.name) ? upload_as(ex, c.values(l), o.dtype)
                                                         : load_dense(ex, c, s.lm_head, {s.vocab, s.hidden}, o.dtype)};
    else
      e.lm_head = load_linear(ex, c, l, o, &note);
    if (notes && !note.empty()) notes->push_back(l.name + ": " + note);
  }
  e.final_norm = load_dense(ex, c, s.final_norm, {s.hidden}, o.dtype);
  load_streams(ex, c, e);
  if (s.logit_scale != 1)
    e.logit_scale = ex.to_device(Tensor::host_from<float>(DType::f32, {1}, std::span(&s.logit_scale, 1)));
  return e;
}

const Linear* head_of(const Ends& e) { return e.lm_head ? &*e.lm_head : e.embed_blocks ? &*e.embed_blocks : nullptr; }

void apply_head(Exec& ex, const Ends& e, ConstTensorView x, TensorView y) {
  const GemmProduct product{.w = e.embed, .y = y};
  if (const Linear* head = head_of(e))
    apply(ex, *head, x, y);
  else
    gemms(ex, x, std::span(&product, 1));
  if (!e.logit_scale.empty()) scale_by(ex, e.logit_scale, y);
}

void apply_head_normed(Exec& ex, const ModelSpec& s, const Ends& e, ConstTensorView x, TensorView normed,
                       TensorView y) {
  if (s.streams > 1 || s.final_norm_kind == NormKind::layer) {
    norm_rows(ex, s, e, x, normed);
    return apply_head(ex, e, normed, y);
  }
  const RowNorm norm{.weight = e.final_norm, .eps = s.final_norm_eps, .offset = weight_offset(s.final_norm_kind)};
  const GemmProduct product{.w = e.embed, .y = y};
  const Linear* head = head_of(e);
  if (head)
    apply_all_normed(ex, std::span(&head, 1), x, norm, normed, std::span(&y, 1));
  else
    normed_gemms(ex, x, norm, normed, std::span(&product, 1));
  if (!e.logit_scale.empty()) scale_by(ex, e.logit_scale, y);
}

namespace {
// The matrix of a dense head; null where it is of another kind.
const Tensor* matrix_of(const Ends& e) {
  const Linear* head = head_of(e);
  if (!head) return &e.embed;
  const auto* dense = std::get_if<DenseLinear>(head);
  return dense && dense->bias.empty() && !dense->input ? &dense->weight : nullptr;
}
}  // namespace

std::vector<int64_t> head_bands(Exec& ex, const ModelSpec& s, const Ends& e, int64_t rows, RankSums* ranks) {
  // Over links of GPUs logits travel faster than the other ranks' rows are read.
  if (!ranks || rows > 1 || !matrix_of(e) || !ranks->recordable(ex)) return {};
  constexpr int64_t kUnit = 64;  // rows that kernels take together
  return even_bands(s.vocab, ranks->part().ranks, kUnit);
}

void apply_head_shared(Exec& ex, const ModelSpec& s, const Ends& e, ConstTensorView x, TensorView normed,
                       std::span<const int64_t> band, RankSums& ranks, TensorView y) {
  const auto own = static_cast<size_t>(ranks.part().rank);
  const TensorView all = y.reshaped({s.vocab}), mine = all.row_range(band[own], band[own + 1]);
  const GemmProduct product{.w = matrix_of(e)->view().row_range(band[own], band[own + 1]),
                            .y = mine.reshaped({1, mine.numel()})};
  if (s.streams > 1 || s.final_norm_kind == NormKind::layer) {
    norm_rows(ex, s, e, x, normed);
    gemms(ex, normed, std::span(&product, 1));
  } else {
    const RowNorm norm{.weight = e.final_norm, .eps = s.final_norm_eps, .offset = weight_offset(s.final_norm_kind)};
    normed_gemms(ex, x, norm, normed, std::span(&product, 1));
  }
  if (!e.logit_scale.empty()) scale_by(ex, e.logit_scale, mine);
  ranks.gather(ex, all, band);
}

int64_t embedding_bytes(const Ends& e) { return e.embed_blocks ? weight_bytes(*e.embed_blocks) : e.embed.bytes(); }

int64_t head_bytes(const Ends& e) {
  const Linear* head = head_of(e);
  return head ? weight_bytes(*head) : e.embed.bytes();
}

std::string_view head_kind(const Ends& e) {
  const Linear* head = head_of(e);
  return head ? kind_of(*head) : "dense";
}

void check_ids(const ModelSpec& spec, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= spec.vocab)
      fail(ErrorKind::usage,
           fmt::format("token {} of the input is {}; the model's vocabulary is [0, {}): text and model "
                       "need the same tokenizer",
                       i, ids[i], spec.vocab));
}

Tensor sequence_positions(Exec& ex, int64_t seqs, int64_t len) {
  const Tensor host = Tensor::host(DType::i32, {seqs * len});
  for (int64_t t = 0; t < seqs * len; ++t) host.as<int32_t>()[t] = static_cast<int32_t>(t % len);
  return ex.to_device(host);
}

EmbeddedTokens embed_tokens(Exec& ex, const ModelSpec& spec, const Ends& ends, std::span<const int32_t> ids,
                            int64_t seqs, DType dtype) {
  const auto tokens = static_cast<int64_t>(ids.size());
  FEWBIT_ASSERT(seqs > 0 && tokens > 0 && tokens % seqs == 0);
  check_ids(spec, ids);
  const int64_t len = tokens / seqs;
  EmbeddedTokens out{ex.alloc(dtype, {tokens, spec.width()}), sequence_positions(ex, seqs, len),
                     ex.to_device(Tensor::host_from<int32_t>(DType::i32, {tokens}, ids))};
  embed_streams(ex, spec, out.ids, ends, out.x);
  return out;
}

Tensor final_normed(Exec& ex, const ModelSpec& spec, const Ends& ends, ConstTensorView x) {
  Tensor y = ex.alloc(x.dtype, {x.rows(), spec.hidden});
  norm_rows(ex, spec, ends, x, y);
  return y;
}

Tensor logits_of(Exec& ex, const ModelSpec& spec, const Ends& ends, ConstTensorView x) {
  const Tensor normed = final_normed(ex, spec, ends, x);
  Tensor y = ex.alloc(DType::f32, {x.rows(), spec.vocab});
  apply_head(ex, ends, normed, y);
  if (spec.logit_softcap > 0) cap_logits(ex, spec.logit_softcap, y);
  return y;
}

Tensor predicting_rows(Exec& ex, ConstTensorView x, int64_t seqs, int64_t first) {
  const int64_t len = x.rows() / seqs, scored = len - first;
  FEWBIT_ASSERT(first >= 1 && scored >= 1);
  Tensor out = ex.alloc(x.dtype, {seqs * scored, x.cols()});
  for (int64_t s = 0; s < seqs; ++s)
    ex.copy(x.row_range(s * len + first - 1, (s + 1) * len - 1), out.view().row_range(s * scored, (s + 1) * scored));
  return out;
}

std::vector<int32_t> targets_of(std::span<const int32_t> ids, int64_t seqs, int64_t first) {
  const int64_t len = static_cast<int64_t>(ids.size()) / seqs;
  std::vector<int32_t> targets;
  targets.reserve(static_cast<size_t>(seqs * (len - first)));
  for (int64_t s = 0; s < seqs; ++s)
    targets.insert(targets.end(), ids.begin() + s * len + first, ids.begin() + (s + 1) * len);
  return targets;
}

int64_t logit_rows_at_once(const Exec& ex, int64_t vocab) {
  return std::max<int64_t>(1, (ex.on_cuda() ? kLogitBytes : kHostLogitBytes) / (vocab * 4));
}

std::vector<float> nll_of_states(Exec& ex, const ModelSpec& spec, const Ends& ends, ConstTensorView x,
                                 std::span<const int32_t> ids, int64_t seqs, int64_t first) {
  const Tensor rows = final_normed(ex, spec, ends, predicting_rows(ex, x, seqs, first));
  const int64_t n = rows.rows(), chunk = std::min(n, logit_rows_at_once(ex, spec.vocab));
  const Tensor targets = ex.to_device(Tensor::host_from<int32_t>(DType::i32, {n}, targets_of(ids, seqs, first)));
  const Tensor losses = ex.alloc(DType::f32, {n});
  const Tensor logits = ex.alloc(DType::f32, {chunk, spec.vocab});
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t end = std::min(n, begin + chunk);
    const TensorView part = logits.view().row_range(0, end - begin);
    apply_head(ex, ends, rows.view().row_range(begin, end), part);
    nll(ex, part, targets.view().row_range(begin, end), spec.logit_softcap, losses.view().row_range(begin, end));
  }
  const Tensor host = ex.to_host(losses);
  return {host.as<float>(), host.as<float>() + n};
}

void PhaseClock::settle() {
  for (const auto& [phase, mark] : marks_) {
    seconds_[phase] += ex_.elapsed_ms(last_, mark) / 1e3;
    last_ = mark;
  }
  marks_.clear();
}

}  // namespace fewbit
