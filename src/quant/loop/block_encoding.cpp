#include "src/quant/loop/block_encoding.h"

#include "kernels/quantize/matrix_edit.h"
#include "src/core/hash.h"
#include "src/model/gguf/checkpoint.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

std::string tensor_name(const PlannedLinear& p) { return p.linear.name + '.' + std::string(p.blocks->name); }

Tensor seen_or(Exec& ex, const InputStats* stats, ConstTensorView importance, int64_t in) {
  if (!stats || stats->tokens == 0) return importance.data ? clone_host(importance) : Tensor();
  const Tensor h = ex.alloc(DType::f32, {in});
  diagonal(ex, stats->gram, h);
  return ex.to_host(h);
}

std::string hash_of(const PlannedLinear& p, const EncodedBlocks& e) {
  // Ends are decoded when the file is opened.
  const Packing* packing = p.linear.layer == kOutsideBlocks ? nullptr : gguf_packing_of(*p.blocks, e.bytes.tensor);
  if (!packing) return content_hash(e.values.view().data, static_cast<size_t>(e.values.bytes()));
  const TensorSource source = [&](const std::string&) { return e.bytes.tensor.view(); };
  return content_hash(packing->unpack(p.linear.name, *p.blocks->grid, p.linear.out, p.linear.in, source));
}

}  // namespace

EncodedBlocks encode_blocks(Exec& ex, const PlannedLinear& p, ConstTensorView weight, const InputStats* stats,
                            ConstTensorView importance, const RowShare& rows) {
  require_finite(ex, p.linear.name, weight);
  const ConstTensorView mine = rows.mine(weight);
  const Tensor host = ex.to_host(mine), h = seen_or(ex, stats, importance, p.linear.in);
  const gguf::Encoder encoder = p.recipe.effort == Effort::reference ? gguf::Encoder::plain : gguf::Encoder::searched;
  EncodedBlocks e;
  e.bytes = {tensor_name(p), rows.whole(gguf::encode(*p.blocks, host, h, encoder))};
  e.values = gguf::decode(*p.blocks, e.bytes.tensor, p.linear.in);
  e.hash = hash_of(p, e);
  if (!stats || stats->tokens == 0) return e;
  const auto loss = [&](ConstTensorView values) {
    return loss_per_token(ex, mine, ex.to_device(values), *stats, rows, LossSums::reported);
  };
  e.loss = e.loss_target = loss(rows.mine(e.values));
  e.loss_plain = e.loss_target_plain =
      loss(gguf::decode(*p.blocks, gguf::encode(*p.blocks, host, {}, gguf::Encoder::plain), p.linear.in));
  return e;
}

EncodedBlocks encode_blocks(Exec& ex, const PlannedLinear& p, const LinearJob& job) {
  require_finite(ex, p.linear.name, job.weight, *job.rows);
  EncodedLinear made = p.recipe.method->encode(ex, job, *p.blocks);
  EncodedBlocks e;
  e.bytes = {tensor_name(p), job.rows->whole(std::move(made.blocks))};
  e.values = gguf::decode(*p.blocks, e.bytes.tensor, p.linear.in);
  e.hash = hash_of(p, e);
  e.loss = made.result.loss;
  e.loss_plain = made.result.loss_rtn;
  e.loss_target = made.result.loss_target;
  e.loss_target_plain = made.result.loss_target_rtn;
  e.rung = made.result.rung;
  return e;
}

Tensor decode_blocks(const PlannedLinear& p, const TensorSource& source) {
  const TensorPlan plan{.suffix = std::string(p.blocks->name),
                        .dtype = DType::u8,
                        .shape = {p.linear.out, gguf::row_bytes(*p.blocks, p.linear.in)}};
  return gguf::decode(*p.blocks, expect_tensor(source, p.linear.name, plan), p.linear.in);
}

}  // namespace fewbit
