#include "src/run/plan/serving_memory.h"

#include <algorithm>

#include "formats/packing.h"
#include "src/model/checkpoint_parts.h"

namespace fewbit {
namespace {

constexpr DType kCompute = DType::bf16;

// What `--head` makes of a head of values.
std::optional<QuantSpec> rounded(HeadType head) {
  if (head == HeadType::fp8) return QuantSpec{.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .scale_dtype = DType::f32};
  if (head == HeadType::int4) return QuantSpec{.bits = 4, .group = 128};
  return std::nullopt;
}

const ServedLinear& linear_of(const ServedModel& m, const std::string& name) {
  const auto it = m.linears.find(name);
  FEWBIT_ASSERT(it != m.linears.end());
  return it->second;
}

void place_ends(const ServedModel& m, const ServingJob& job, ServedBytes& b) {
  const ModelSpec& spec = m.checkpoint->spec;
  const std::vector<NamedLinear> ends = ends_of(spec);
  b.embed = spec.vocab * spec.hidden * bytes_of(kCompute);
  ServedLinear head = linear_of(m, ends.back().name);
  b.stored_head = head.stored;
  const std::optional<QuantSpec> asked = rounded(job.head);
  b.head_is_embed = spec.tied() && !asked;
  if (asked) {
    if (head.codes) fail(ErrorKind::usage, ends.back().name + ": --head: the checkpoint has it packed already");
    head = {.codes = asked};
  } else if (spec.tied() || job.head == HeadType::dense) {
    head.codes.reset();
  }
  const PlacedLinear p = place(head, spec.vocab, spec.hidden, job.tp);
  b.head = bytes_of(p.form, p.spec, spec.vocab, spec.hidden, head.act_order, false);
  if (asked) b.stored_head = b.head;
  b.norm = spec.hidden * bytes_of(kCompute);
}

}  // namespace

ServedModel served(const Checkpoint& c) {
  ServedModel m{.checkpoint = &c, .stored = c.store.total_bytes()};
  std::vector<NamedLinear> all = linears_of(c.spec);
  for (NamedLinear& l : ends_of(c.spec)) all.push_back(std::move(l));
  for (const NamedLinear& l : all) {
    ServedLinear s{.stored = stored_weight_bytes(c, l)};
    if (const auto it = c.quantization.linears.find(l.name); it != c.quantization.linears.end())
      s.codes = it->second.spec, s.act_order = it->second.act_order;
    m.linears.emplace(l.name, std::move(s));
  }
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    for (const BlockOp& op : c.spec.block(layer))
      if (std::holds_alternative<Moe>(op))
        for (const LinearDef& l : linears_of(op)) m.linears.at(c.spec.prefix(layer) + l.name).expert = true;
  return m;
}

PlacedLinear place(const ServedLinear& l, int64_t out, int64_t in, int ranks) {
  if (!l.codes) return {dense_form(kCompute), {}};
  QuantSpec spec = spec_on_device(true, *l.codes);
  // A loader looks whether f16 holds the scales exactly; those that were bf16 nearly always are such.
  if (spec.scale_dtype == DType::bf16) spec.scale_dtype = DType::f16;
  return {form_of(true, spec, out, in, l.act_order, kCompute, l.expert && ranks == 1), spec};
}

ServedBytes bytes_of(const ServedModel& m, const ServingJob& job) {
  const ModelSpec& whole = m.checkpoint->spec;
  const RankPart part{0, job.tp};
  ServedBytes b{.rank = spec_of_rank(whole, part)};
  for (int64_t layer = 0; layer < whole.layers; ++layer) {
    const LatentAttention* latent = latent_attention_of(whole.block(layer));
    const auto loaded = [&](const LinearDef& l, const LinearShare& share) {
      ServedLinear s = linear_of(m, whole.prefix(layer) + l.name);
      if (latent && latent->kv_b == l.name) s.codes.reset();  // a step multiplies queries and outputs by its values
      const PlacedLinear p = place(s, share.out(), share.in(), job.tp);
      return bytes_of(p.form, p.spec, share.out(), share.in(), s.act_order, l.bias && share.bias);
    };
    const auto stored = [&](const LinearDef& l, const LinearShare& share) {
      const double part =
          static_cast<double>(share.out() * share.in()) / static_cast<double>(l.out_features * l.in_features);
      return static_cast<int64_t>(part * static_cast<double>(linear_of(m, whole.prefix(layer) + l.name).stored)) +
             (l.bias && share.bias ? share.out() * bytes_of(kCompute) : 0);
    };
    b.loaded.push_back(block_bytes(whole, layer, kCompute, part, loaded));
    b.stored.push_back(block_bytes(whole, layer, kCompute, part, stored));
  }
  place_ends(m, job, b);
  return b;
}

LayerRange stage_layers(const ModelSpec& spec, int stage, int pp) {
  return {spec.layers * stage / pp, spec.layers * (stage + 1) / pp};
}

ModelSpec layers_of(const ModelSpec& spec, LayerRange r) {
  ModelSpec part = spec;
  part.layers = r.end - r.begin;
  if (!spec.kind_of_layer.empty())
    part.kind_of_layer.assign(spec.kind_of_layer.begin() + r.begin, spec.kind_of_layer.begin() + r.end);
  return part;
}

ServingMemory stage_memory(const ServedBytes& b, const ServingJob& job, int stage) {
  const LayerRange layers = stage_layers(b.rank, stage, job.pp);
  const bool first = stage == 0, last = stage == job.pp - 1;
  ServingMemory m{.capacity = static_cast<int64_t>(job.gpu->memory_gib * 0x1p30)};
  m.reserve = m.capacity / 12;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer)
    m.weights += held_bytes(b.loaded[static_cast<size_t>(layer)]);
  if (first || (last && b.head_is_embed)) m.weights += b.embed;
  if (last) m.weights += b.norm + (b.head_is_embed ? 0 : b.head);
  m.cache = job.concurrency * cache_bytes(b.rank, layers, job.kv_cache, kCompute, job.context, false);
  const int64_t chunk = std::max(job.concurrency, std::min(kPrefillChunk, job.concurrency * job.context));
  m.activations = activation_bytes(b.rank, kCompute, job.concurrency, chunk);
  return m;
}

}  // namespace fewbit
