#pragma once
// What the keys and values of running sequences are stored as, the memory for it, and the static scales that
// a checkpoint brings along.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
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
};
std::string_view name_of(KvType);       // "bf16", "fp8", "fp8-plain", "int8", "int4"
KvType kv_type_from(std::string_view);  // Error{usage} listing the names

// One layer's keys and values of `batch` sequences of up to `capacity` positions.
struct KvStorage {
  Tensor k{}, v{};                // as in KvCache
  Tensor k_scales{}, v_scales{};  // the same, of int8 and int4
};
KvStorage alloc_kv(Exec&, const Attention&, KvType, DType compute, int64_t batch, int64_t capacity);

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
// shared keys none, and 4 bits want an even head_dim.
void check_cache_type(const ModelSpec&, KvType);

// What the recurrent ops of a layer remember of `batch` sequences, by the ops' names: the tail of a short convolution
// in the compute dtype, as that of what makes keys of blocks of tokens, the matrices of a delta rule or a state scan in
// f32. Zero before the first token.
using RecurrentState = std::map<std::string, Tensor>;
RecurrentState alloc_recurrent(Exec&, const std::vector<BlockOp>&, DType compute, int64_t batch);

// Bytes that one position of one sequence takes in a layer: keys, values and their scales.
int64_t kv_bytes(const Attention&, KvType, DType compute);
// The same of latents and of the keys of a choice; 0 where the block has none.
int64_t latent_bytes(const std::vector<BlockOp>&, KvType, DType compute);
int64_t recurrent_bytes(const std::vector<BlockOp>&, DType compute);  // of the states of one sequence in a layer

}  // namespace fewbit
