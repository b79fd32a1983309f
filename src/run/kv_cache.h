#pragma once
// What the keys and values of running sequences are stored as, the memory for it, and the static scales that
// a checkpoint brings along.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/kivi/kivi_cache.h"
#include "src/model/checkpoint.h"
#include "src/model/parallel/tensor_parallel.h"

namespace fewbit {

enum class KvType : uint8_t {
  plain,  // the compute dtype
  // E4M3 with the checkpoint's static scales, 1 where it has none; queries and keys turned (kernels/model/hadamard.h)
  fp8,
  fp8_plain,  // the same without the turn: what engines that read the checkpoint's scales store
  int8,       // with a scale per token and head
  // 4 bits with a scale and a center per token, head and group of features (kernels/kv/int4_rows.h); queries, keys and
  // values turned, the sums over values turned back
  int4,
  // KIVI's form with 2 and 4 bits: keys in groups of 32 tokens of a channel, values in groups of 32 features of a
  // token, not turned; the last 128 to 159 tokens of a query in the compute dtype (kernels/kivi/kivi_cache.h)
  kivi2,
  kivi4,
};
std::string_view name_of(KvType);       // "bf16", "fp8", "fp8-plain", "int8", "int4", "kivi2", "kivi4"
KvType kv_type_from(std::string_view);  // Error{usage} listing the names

constexpr bool is_kivi(KvType type) { return type == KvType::kivi2 || type == KvType::kivi4; }
constexpr int kivi_bits(KvType type) { return type == KvType::kivi2 ? 2 : 4; }
// New tokens of a sequence that a pass over a KIVI cache has at most, where a prompt is longer: as many rows, and the
// window, are kept beside the codes.
inline constexpr int64_t kKiviPass = 512;

// One layer's keys and values of `batch` sequences of up to `capacity` positions.
struct KvStorage {
  Tensor k{}, v{};                // as in KvCache
  Tensor k_scales{}, v_scales{};  // the same, of int8 and int4
  Tensor k_recent{}, v_recent{};  // as in KiviCache, which the others are too then
};
// `pass`: new tokens of a sequence that one pass appends at most, which only KIVI's form asks.
KvStorage alloc_kv(Exec&, const Attention&, KvType, DType compute, int64_t batch, int64_t capacity,
                   int64_t pass = kKiviPass);

// The static scales of one layer, [kv_heads] f32 on the device; empty unless fp8.
struct KvStaticScales {
  Tensor k{}, v{};
};
// Queries and keys are turned before the keys are stored; and values.
constexpr bool turns_keys(KvType type) { return type == KvType::fp8 || type == KvType::int4; }
constexpr bool turns_values(KvType type) { return type == KvType::int4; }

// Those of all layers of a checkpoint, of the rank's heads; `notes` receives a line where it has none that FP8 codes
// can use.
std::vector<KvStaticScales> load_kv_scales(Exec&, const Checkpoint&, KvType, std::vector<std::string>* notes,
                                           RankPart part = {});

KvCache view_of(const KvStorage&, const KvStaticScales&);
KiviCache kivi_of(const KvStorage&, KvType);

// What latent attention and its choice of keys keep of `batch` sequences in one layer: the latents in the compute dtype
// or in E4M3, all else in the compute dtype.
struct LatentStorage {
  Tensor latent{}, k_rope{};  // [batch, capacity, rank], [batch, capacity, rope]
  Tensor scales{};            // of latents in E4M3: [batch, capacity, latent_groups(rank)] f32
  Tensor index{};             // [batch, capacity, head_dim of the choice]
  Tensor keys{}, far{};       // of attention over shared keys: [batch, capacity, head_dim] each
};
// Empty where the block has none.
LatentStorage alloc_latent(Exec&, const std::vector<BlockOp>&, KvType, DType compute, int64_t batch, int64_t capacity);
// Error{unsupported} where a model's attention has no cache of this type: latents have fp8 besides the compute dtype,
// shared keys none, 4 bits want an even head_dim, and KIVI's form one that is a multiple of 32.
void check_cache_type(const ModelSpec&, KvType);
// Error{unsupported} where `what` keeps its cache in pages, or takes tokens back from it, and the type does not.
void check_paged_type(const std::string& what, KvType);

// What the recurrent ops of a layer remember of `batch` sequences, by the ops' names: the tail of a short convolution
// in the compute dtype, as that of what makes keys of blocks of tokens, the matrices of a delta rule or a state scan in
// f32. Zero before the first token.
using RecurrentState = std::map<std::string, Tensor>;
RecurrentState alloc_recurrent(Exec&, const std::vector<BlockOp>&, DType compute, int64_t batch);

// Bytes that one position of one sequence takes in a layer: keys, values and their scales; of KIVI's form, behind the
// window.
int64_t kv_bytes(const Attention&, KvType, DType compute);
// What alloc_kv() takes for one sequence; and what a step at position `context` - 1 reads, of which it sees the last
// `in_sight` ones.
int64_t kv_held_bytes(const Attention&, KvType, DType compute, int64_t capacity);
int64_t kv_read_bytes(const Attention&, KvType, DType compute, int64_t context, int64_t in_sight);
// The same of latents and of the keys of a choice; 0 where the block has none.
int64_t latent_bytes(const std::vector<BlockOp>&, KvType, DType compute);
int64_t recurrent_bytes(const std::vector<BlockOp>&, DType compute);  // of the states of one sequence in a layer

}  // namespace fewbit
