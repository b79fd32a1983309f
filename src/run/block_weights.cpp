// The weights of a block on a device, and what a pass reads of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/model/cast.h"
#include "src/model/checkpoint_parts.h"
#include "src/run/block.h"
#include "src/run/plan/step_bytes.h"
#include "src/run/rank_sums.h"
#include "src/run/token_input.h"
#include "src/run/upload_as.h"
#include "src/run/values_of.h"

namespace fewbit {
namespace {

// Integers, which are checked against their range.
Tensor load_integers(Exec& ex, const Checkpoint& c, const std::string& name, const SmallTensor& small) {
  const ConstTensorView stored = c.store.expect(name, {DType::i64, DType::i32}, small.shape);
  const Tensor host = Tensor::host(DType::i32, small.shape);
  const int64_t bytes = bytes_of(stored.dtype);
  for (int64_t i = 0; i < host.numel(); ++i) {
    int64_t wide = 0;
    int32_t narrow = 0;
    // By bytes: a tensor of a file lies at any address.
    std::memcpy(bytes == 8 ? static_cast<void*>(&wide) : &narrow, static_cast<const char*>(stored.data) + bytes * i,
                static_cast<size_t>(bytes));
    const int64_t value = bytes == 8 ? wide : narrow;
    if (value < 0 || value >= small.below)
      fail(ErrorKind::checkpoint, fmt::format("{}: {}: value {}: expected an integer in [0, {}), found {}",
                                              c.store.path().string(), name, i, small.below, value));
    host.view().as<int32_t>()[i] = static_cast<int32_t>(value);
  }
  return ex.to_device(host);
}

Tensor load_small(Exec& ex, const Checkpoint& c, const std::string& prefix, const SmallTensor& small, DType compute) {
  if (small.below > 0) return load_integers(ex, c, prefix + small.name, small);
  if (const std::string name = prefix + small.key(); c.packed(name))
    return values_of(ex, c.sound_codes({name, kOutsideModel, small.shape[0], small.shape[1], false}),
                     small.exact ? DType::f32 : compute);
  return upload_as(ex, c.store.expect(prefix + small.name, {DType::f32, DType::f16, DType::bf16}, small.shape),
                   small.exact ? DType::f32 : compute);
}

Tensor ones(Exec& ex, int64_t n, DType dtype) {
  Tensor t = ex.alloc(dtype, {n});
  cast(ex, ex.to_device(Tensor::host_from<float>(DType::f32, {n}, std::vector<float>(static_cast<size_t>(n), 1.f))), t);
  return t;
}

// The sinks of a rank's heads.
Tensor sinks_of(Exec& ex, const Tensor& all, const Range& heads) {
  Tensor own = ex.alloc(all.dtype(), {heads.size()});
  ex.copy(all.view().row_range(heads.begin, heads.end), own);
  return own;
}

}  // namespace

std::vector<std::string> lines_of(const LinearNotes& notes) {
  std::vector<std::string> lines;
  for (const auto& [reason, names] : notes)
    lines.push_back(names.size() == 1 ? fmt::format("{}: {}", names[0], reason)
                                      : fmt::format("{} linears ({} first): {}", names.size(), names[0], reason));
  return lines;
}

BlockWeights load_vectors(Exec& ex, const Checkpoint& c, int64_t layer, DType dtype) {
  BlockWeights w;
  const std::string prefix = c.spec.prefix(layer);
  for (const BlockOp& op : c.spec.block(layer)) {
    if (const HeadNorm* n = std::get_if<HeadNorm>(&op); n && n->name.empty())
      w.vectors.emplace(n->name, ones(ex, n->head_dim, dtype));
    if (const TokenInput* t = std::get_if<TokenInput>(&op))
      w.vectors.emplace(t->table, token_table(ex, c, *t, layer, dtype));
    for (const SmallTensor& t : small_tensors_of(op)) w.vectors.emplace(t.key(), load_small(ex, c, prefix, t, dtype));
  }
  return w;
}

Tensor load_bias(Exec& ex, const Checkpoint& c, const NamedLinear& l, DType dtype) {
  if (!l.bias) return {};
  return upload_as(ex, c.store.expect(l.name + ".bias", {DType::f32, DType::f16, DType::bf16}, {l.out}), dtype);
}

BlockWeights load_block(Exec& ex, const Checkpoint& c, int64_t layer, const LoadOptions& o, LinearNotes* notes) {
  BlockWeights w = load_vectors(ex, c, layer, o.dtype);
  const std::string prefix = c.spec.prefix(layer);
  const RankPart part = part_of(o);
  const std::vector<BlockOp>& block = c.spec.block(layer);
  const LatentAttention* latent = latent_attention_of(block);
  for (BlockOp op : block) {
    if (auto* moe = std::get_if<Moe>(&op)) *moe = experts_of_rank(*moe, part);
    LoadOptions own = o;
    own.expert = std::holds_alternative<Moe>(op) && part.alone();
    for (const LinearDef& l : linears_of(op)) {
      std::string note;
      const NamedLinear named{prefix + l.name, layer, l.out_features, l.in_features, l.bias};
      if (latent && latent->kv_b == l.name) {
        w.linears.emplace(l.name, load_dense(ex, c, named, share_of(block, l, part), o.dtype));
        if (c.packed(named.name)) note = "run dequantized: a decode step multiplies queries and outputs by them";
      } else {
        w.linears.emplace(l.name, part.alone() ? load_linear(ex, c, named, own, &note)
                                               : load_share(ex, c, named, share_of(block, l, part), o, &note));
      }
      if (notes && !note.empty()) (*notes)[note].push_back(named.name);
      if (part.alone()) release_linear(c, named.name);  // others may be reading it
    }
    if (const auto* a = std::get_if<Attention>(&op); a && !a->sinks.empty() && !part.alone())
      w.vectors[a->sinks] = sinks_of(ex, w.vectors.at(a->sinks), heads_of(*a, part));
  }
  return w;
}

int64_t weight_bytes(const std::vector<BlockOp>& block, const BlockWeights& w, int64_t tokens) {
  return weight_bytes(block, bytes_of(block, w), tokens);
}

}  // namespace fewbit
