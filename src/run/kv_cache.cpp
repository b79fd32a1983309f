#include "src/run/kv_cache.h"

#include <algorithm>
#include <array>

#include "formats/kv_scales.h"
#include "kernels/attention/latent_attention.h"
#include "kernels/kv/int4_rows.h"
#include "src/core/names.h"

namespace fewbit {
namespace {

constexpr std::array<std::pair<KvType, std::string_view>, 7> kNames{{{KvType::plain, "bf16"},
                                                                     {KvType::fp8, "fp8"},
                                                                     {KvType::fp8_plain, "fp8-plain"},
                                                                     {KvType::int8, "int8"},
                                                                     {KvType::int4, "int4"},
                                                                     {KvType::kivi2, "kivi2"},
                                                                     {KvType::kivi4, "kivi4"}}};

// A checkpoint's k_scale was measured on keys as they are. Turning them evens out their channels, but could raise the
// largest; E4M3 has the range to spare.
constexpr float kTurnedRoom = 4;

// Of latents: they have no form of int8 or int4, and nothing turns them.
bool stores_codes(KvType type) { return type == KvType::fp8; }
bool is_fp8(KvType type) { return type == KvType::fp8 || type == KvType::fp8_plain; }

DType stored_as(KvType type, DType compute) {
  if (type == KvType::int4 || is_kivi(type)) return DType::u8;
  return is_fp8(type) ? DType::f8_e4m3 : type == KvType::int8 ? DType::i8 : compute;
}
// Elements of a row of one head.
int64_t row_elements(const Attention& a, KvType type) {
  return is_kivi(type) ? a.head_dim * kivi_bits(type) / 8 : type == KvType::int4 ? a.head_dim / 2 : a.head_dim;
}

// One scale per head on the device, for those of a rank.
Tensor per_head(Exec& ex, std::vector<float> scales, const Range& heads) {
  if (scales.size() == 1) scales.resize(static_cast<size_t>(heads.end), scales[0]);
  const std::span<const float> own(scales.data() + heads.begin, static_cast<size_t>(heads.size()));
  return ex.to_device(Tensor::host_from<float>(DType::f32, {heads.size()}, own));
}

// As KiviCache has it.
KvStorage alloc_kivi(Exec& ex, const Attention& a, KvType type, DType compute, int64_t batch, int64_t capacity,
                     int64_t pass) {
  const int64_t heads = a.kv_heads, d = a.head_dim, ring = kivi_ring(capacity, pass);
  const auto codes = [&] { return ex.alloc_zeros(DType::u8, {batch, heads, capacity, row_elements(a, type)}); };
  const auto recent = [&] { return ex.alloc_zeros(compute, {batch, heads, ring, d}); };
  return {.k = codes(),
          .v = codes(),
          .k_scales = ex.alloc_zeros(DType::bf16, {batch, heads, capacity / kKiviGroup, 2 * d}),
          .v_scales = ex.alloc_zeros(DType::bf16, {batch, heads, capacity, 2 * d / kKiviGroup}),
          .k_recent = recent(),
          .v_recent = recent()};
}

}  // namespace

std::string_view name_of(KvType type) { return to_name(kNames, type); }

KvType kv_type_from(std::string_view name) { return from_name(kNames, "--kv-cache", name); }

KvStorage alloc_kv(Exec& ex, const Attention& a, KvType type, DType compute, int64_t batch, int64_t capacity,
                   int64_t pass) {
  if (is_kivi(type)) return alloc_kivi(ex, a, type, compute, batch, kivi_capacity(capacity), pass);
  const Shape shape = {batch, a.kv_heads, capacity, row_elements(a, type)};
  KvStorage s;
  s.k = ex.alloc_zeros(stored_as(type, compute), shape);
  s.v = ex.alloc_zeros(stored_as(type, compute), shape);
  if (type != KvType::int8 && type != KvType::int4) return s;
  const bool groups = type == KvType::int4;
  const DType scale = groups ? DType::bf16 : DType::f32;
  const Shape scales =
      groups ? Shape{batch, a.kv_heads, capacity, 2 * int4_groups(a.head_dim)} : Shape{batch, a.kv_heads, capacity};
  s.k_scales = ex.alloc_zeros(scale, scales);
  s.v_scales = ex.alloc_zeros(scale, scales);
  return s;
}

std::vector<KvStaticScales> load_kv_scales(Exec& ex, const Checkpoint& c, KvType type, std::vector<std::string>* notes,
                                           RankPart part) {
  std::vector<KvStaticScales> out(static_cast<size_t>(c.spec.layers));
  if (!is_fp8(type)) return out;
  const std::string& foreign = c.quantization.foreign_kv_cache;
  int64_t missing = 0;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    const Attention* attention = own_attention_of(c.spec.block(layer));
    if (!attention) continue;
    const int heads = attention->kv_heads;
    const std::string name = c.spec.prefix(layer) + attention_module(c.spec.block(layer));
    auto scales = foreign.empty() ? read_kv_scales(name, heads, c.source()) : std::nullopt;
    missing += !scales;
    if (scales && turns_keys(type))
      for (float& k : scales->k) k *= kTurnedRoom;
    if (!scales) scales = KvScales{.k = {1}, .v = {1}};
    const Range own = kv_heads_of(*attention, part);
    out[static_cast<size_t>(layer)] = {.k = per_head(ex, scales->k, own), .v = per_head(ex, scales->v, own)};
  }
  if (missing > 0 && notes)
    notes->push_back("FP8 cache: " +
                     (foreign.empty() ? std::to_string(missing) + " of " + std::to_string(c.spec.layers) +
                                            " layers have no k_scale and v_scale"
                                      : foreign) +
                     "; their scale is 1");
  return out;
}

KvCache view_of(const KvStorage& s, const KvStaticScales& fixed) {
  if (!fixed.k.empty()) return {.k = s.k, .v = s.v, .k_scales = fixed.k, .v_scales = fixed.v};
  return {.k = s.k, .v = s.v, .k_scales = s.k_scales, .v_scales = s.v_scales};
}

KiviCache kivi_of(const KvStorage& s, KvType type) {
  return {.bits = kivi_bits(type),
          .k = s.k,
          .v = s.v,
          .k_scales = s.k_scales,
          .v_scales = s.v_scales,
          .k_recent = s.k_recent,
          .v_recent = s.v_recent};
}

LatentStorage alloc_latent(Exec& ex, const std::vector<BlockOp>& block, KvType type, DType compute, int64_t batch,
                           int64_t capacity) {
  LatentStorage s;
  if (const LatentAttention* a = latent_attention_of(block)) {
    s.latent = ex.alloc_zeros(stores_codes(type) ? DType::f8_e4m3 : compute, {batch, capacity, a->rank});
    if (stores_codes(type)) s.scales = ex.alloc_zeros(DType::f32, {batch, capacity, latent_groups(a->rank)});
    s.k_rope = ex.alloc_zeros(compute, {batch, capacity, a->rope});
  }
  if (const KeyChoice* k = key_choice_of(block)) s.index = ex.alloc_zeros(compute, {batch, capacity, k->head_dim});
  if (const SharedKeyAttention* a = shared_key_attention_of(block)) {
    s.keys = ex.alloc_zeros(compute, {batch, capacity, a->head_dim});
    if (a->sees_far()) s.far = ex.alloc_zeros(compute, {batch, capacity, a->head_dim});
  }
  return s;
}

void check_cache_type(const ModelSpec& spec, KvType type) {
  for (const std::vector<BlockOp>& block : spec.kinds) {
    if (const Attention* a = attention_of(block); a && type == KvType::int4 && a->head_dim % 2 != 0)
      fail(ErrorKind::unsupported, spec.arch + ": --kv-cache int4: two codes share a byte, and heads have " +
                                       std::to_string(a->head_dim) + " features; expected an even number; take int8");
    if (const Attention* a = attention_of(block); a && is_kivi(type) && a->head_dim % kKiviGroup != 0)
      fail(ErrorKind::unsupported, spec.arch + ": --kv-cache " + std::string(name_of(type)) + ": values are coded in " +
                                       "groups of 32 features, and heads have " + std::to_string(a->head_dim) +
                                       "; expected a multiple of 32; take int4");
    if (latent_attention_of(block) && type != KvType::plain && !stores_codes(type))
      fail(ErrorKind::unsupported, spec.arch + ": --kv-cache " + std::string(name_of(type)) +
                                       ": the latents of its attention are kept as fp8 or in the compute type; take "
                                       "fp8, or leave --kv-cache out");
    if (shared_key_attention_of(block) && type != KvType::plain)
      fail(ErrorKind::unsupported,
           spec.arch + ": --kv-cache " + std::string(name_of(type)) +
               ": the shared keys of its attention are kept in the compute type only; leave --kv-cache out");
  }
}

void check_paged_type(const std::string& what, KvType type) {
  if (is_kivi(type))
    fail(ErrorKind::unsupported, what + ": --kv-cache " + std::string(name_of(type)) +
                                     ": the window of a KIVI cache is kept for sequences that only grow, each in one "
                                     "piece; take int4, or runner generate and runner bench --batch without drafts");
}

namespace {

struct StateForm {
  std::string name;  // of the op
  DType dtype;
  Shape shape;
};
std::vector<StateForm> state_forms(const std::vector<BlockOp>& block, DType compute, int64_t batch) {
  std::vector<StateForm> forms;
  for (const BlockOp& op : block) {
    if (const auto* c = std::get_if<ShortConv>(&op))
      forms.push_back({c->name, compute, {batch, c->taps - 1, c->channels}});
    if (const auto* c = std::get_if<CompressKeys>(&op))
      forms.push_back({c->name, compute, {batch, c->overlap ? 2 * c->every : c->every, 2 * c->width()}});
    if (const auto* s = std::get_if<StateScan>(&op))
      forms.push_back({s->a_log, DType::f32, {batch, s->heads, s->head_dim, s->state}});
    if (const auto* d = std::get_if<DeltaRule>(&op))
      forms.push_back({d->a_log, DType::f32, {batch, d->v_heads, d->k_dim, d->v_dim}});
  }
  return forms;
}

}  // namespace

RecurrentState alloc_recurrent(Exec& ex, const std::vector<BlockOp>& block, DType compute, int64_t batch) {
  RecurrentState state;
  for (const StateForm& f : state_forms(block, compute, batch)) state.emplace(f.name, ex.alloc_zeros(f.dtype, f.shape));
  return state;
}

int64_t recurrent_bytes(const std::vector<BlockOp>& block, DType compute) {
  int64_t bytes = 0;
  for (const StateForm& f : state_forms(block, compute, 1)) bytes += f.shape.numel() * bytes_of(f.dtype);
  return bytes;
}

int64_t latent_bytes(const std::vector<BlockOp>& block, KvType type, DType compute) {
  const LatentAttention* a = latent_attention_of(block);
  const KeyChoice* k = key_choice_of(block);
  const SharedKeyAttention* s = shared_key_attention_of(block);
  const int64_t latent = !a                   ? 0
                         : stores_codes(type) ? a->rank + latent_groups(a->rank) * bytes_of(DType::f32)
                                              : a->rank * bytes_of(compute);
  const int64_t rest = (a ? a->rope : 0) + (k ? k->head_dim : 0) + (s ? s->head_dim * (s->sees_far() ? 2 : 1) : 0);
  return latent + rest * bytes_of(compute);
}

int64_t kv_bytes(const Attention& a, KvType type, DType compute) {
  if (is_kivi(type))
    return 2 * a.kv_heads * (row_elements(a, type) + 2 * a.head_dim / kKiviGroup * bytes_of(DType::bf16));
  const int64_t scales = type == KvType::int8   ? bytes_of(DType::f32)
                         : type == KvType::int4 ? int4_groups(a.head_dim) * static_cast<int64_t>(sizeof(Int4Scale))
                                                : 0;
  return 2 * a.kv_heads * (row_elements(a, type) * bytes_of(stored_as(type, compute)) + scales);
}

int64_t kv_held_bytes(const Attention& a, KvType type, DType compute, int64_t capacity) {
  if (!is_kivi(type)) return kv_bytes(a, type, compute) * capacity;
  const int64_t whole = kivi_capacity(capacity);
  return kv_bytes(a, type, compute) * whole + kv_bytes(a, KvType::plain, compute) * kivi_ring(whole, kKiviPass);
}

int64_t kv_read_bytes(const Attention& a, KvType type, DType compute, int64_t context, int64_t in_sight) {
  if (!is_kivi(type)) return kv_bytes(a, type, compute) * in_sight;
  const int64_t recent = std::min(in_sight, context - kivi_coded(context - 1));
  return kv_bytes(a, KvType::plain, compute) * recent + kv_bytes(a, type, compute) * (in_sight - recent);
}

}  // namespace fewbit
