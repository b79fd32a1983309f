// OutShards, what every file will hold: the order of tensors, where a file ends, and what is foreseen of them all.
#include <algorithm>
#include <charconv>
#include <map>

#include "formats/kv_scales.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/quant/output/out_shards.h"

namespace fewbit {
namespace {

std::string stem(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.') + 1); }

int64_t bytes_in(const TensorInfo& t) { return t.shape.numel() * bytes_of(t.dtype); }

// What a file must hold to end for its digest's sake: a fifth of a second of one. What may wait for the last block of a
// file: some half a second.
constexpr int64_t kWorthAFile = int64_t{256} << 20, kMayWait = int64_t{1} << 30;

}  // namespace

// Unit 0 stands in front of the blocks, unit 1 + n is block n, and the last one comes behind them.
int64_t OutShards::unit_of(const std::string& tensor) const {
  const ModelSpec& spec = ckpt_.spec;
  if (starts_with(tensor, spec.block_prefix)) {
    int64_t layer = -1;
    const char* end = tensor.data() + tensor.size();
    const auto [rest, error] = std::from_chars(tensor.data() + spec.block_prefix.size(), end, layer);
    if (error == std::errc() && rest != end && *rest == '.' && layer >= 0 && layer < spec.layers) return 1 + layer;
  }
  const bool head = !spec.tied() && starts_with(tensor, stem(spec.lm_head));
  return head || starts_with(tensor, stem(spec.final_norm)) ? 1 + spec.layers : 0;
}

// Whether what a packed linear has most of is of one byte: types are laid out in falling order, and norms have two.
bool OutShards::codes_come_last(const QuantPlan& plan) {
  const auto packed = std::find_if(plan.linears.begin(), plan.linears.end(), [](const PlannedLinear& p) {
    return !p.keep && p.packing && p.linear.layer != kOutsideBlocks;
  });
  if (packed == plan.linears.end()) return false;
  const PlannedLinear& p = *packed;
  const std::vector<TensorPlan> tensors =
      p.packing->tensors(p.recipe.spec, p.linear.out, p.linear.in, p.recipe.act_order == ActOrder::full);
  const auto bytes = [](const TensorPlan& t) { return t.shape.numel() * bytes_of(t.dtype); };
  const auto codes = std::max_element(tensors.begin(), tensors.end(),
                                      [&](const TensorPlan& a, const TensorPlan& b) { return bytes(a) < bytes(b); });
  return codes != tensors.end() && bytes_of(codes->dtype) == 1;
}

// Whether a file with so many bytes ends in front of the unit that comes, for its digest's sake.
bool OutShards::ends_before(int64_t unit, int64_t bytes) const {
  if (bytes < kWorthAFile) return false;
  if (unit <= ckpt_.spec.layers) {
    if (codes_last_ && (bytes >= kMayWait || unit == ckpt_.spec.layers)) return true;
    int64_t block = unit - 1;
    while (block >= 10 && block % 10 == 0) block /= 10;
    return unit > 10 && block == 1;
  }
  int64_t own = 0;
  for (const TensorInfo* info : of_model_.back()) own += bytes_in(*info);
  return own >= kWorthAFile;
}

// The tensors of every shard, by the rule of take(). Experts that are stacked are not foreseen, nor is a vector that a
// transform stores in another type.
void OutShards::foresee(const QuantPlan& plan) {
  if (stacked_) return;
  const ModelSpec& spec = ckpt_.spec;
  std::vector<std::map<std::string, TensorInfo>> units(of_model_.size());
  const auto add = [&](int64_t unit, TensorInfo info) {
    info.bytes = bytes_in(info);
    units[static_cast<size_t>(unit)].emplace(info.name, std::move(info));
  };
  for (const PlannedLinear& p : plan.linears) {
    if (p.keep || !p.packing) continue;
    const NamedLinear& l = p.linear;
    const bool full = p.recipe.act_order == ActOrder::full;
    for (const TensorPlan& t : p.packing->tensors(p.recipe.spec, l.out, l.in, full))
      add(1 + (l.layer == kOutsideBlocks ? spec.layers : l.layer),
          {.name = l.name + '.' + t.suffix, .dtype = t.dtype, .shape = t.shape});
  }
  for (int64_t layer = 0; plan.fp8_kv_cache && layer < spec.layers; ++layer)
    if (own_attention_of(spec.block(layer)))
      for (const NamedTensor& t :
           kv_scale_tensors(spec.prefix(layer) + attention_module(spec.block(layer)), {.k = {1}, .v = {1}}))
        add(1 + layer, {.name = t.name, .dtype = t.tensor.dtype(), .shape = t.tensor.shape()});
  for (size_t unit = 0; unit < units.size(); ++unit)
    for (const TensorInfo* info : of_model_[unit]) add(static_cast<int64_t>(unit), *info);
  std::set<std::string> seen;
  int64_t bytes = 0;
  foreseen_.emplace_back();
  const auto next = [&] {
    foreseen_.emplace_back();
    bytes = 0;
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (ends_before(static_cast<int64_t>(unit), bytes)) next();
    for (auto& [name, info] : units[unit]) {
      if (!seen.insert(name).second) continue;
      if (!foreseen_.back().empty() && bytes + info.bytes > shard_bytes_) next();
      bytes += info.bytes;
      foreseen_.back().push_back(std::move(info));
    }
  }
}

}  // namespace fewbit
