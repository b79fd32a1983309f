#pragma once
// The ops of mixers that are not plain attention: recurrent ones, and attention over latents. Part of the list of
// src/model/block_ops.h, whose words they use.
#include <cstdint>
#include <string>

#include "src/core/shape.h"
#include "src/model/rope_params.h"
#include "src/model/slots.h"

namespace fewbit {

// Causal convolution of a few taps over every channel, then SiLU: `name` is [channels, 1, taps].
struct ShortConv {
  Slot in, out;
  std::string name;
  int64_t channels, taps;
  bool silu = true, bias = false;  // [channels]
};
// Gated delta rule (kernels/recurrent/delta_rule.h) over q, k, v, which lie side by side where they are one slot.
struct DeltaRule {
  Slot q, k, v, beta, decay, out;
  std::string a_log, dt_bias;
  int k_heads, v_heads;
  int64_t k_dim, v_dim;
  bool each_channel = false;  // a decay for every key channel: `decay` and dt_bias are [v_heads * k_dim], not [v_heads]
  Shape a_log_shape{};        // as it is stored, v_heads values; of rank 0: [v_heads]
  int64_t rates() const { return each_channel ? v_heads * k_dim : v_heads; }
  // Where k and v begin in their slots.
  int64_t k_at() const { return k == q ? k_heads * k_dim : 0; }
  int64_t v_at() const { return v == q ? 2 * k_heads * k_dim : 0; }
};
// Selective state space (kernels/recurrent/state_scan.h) over in = x, B, C side by side. Its three vectors are [heads].
struct StateScan {
  Slot in, dt, out;
  std::string a_log, dt_bias, d;
  int heads, groups;
  int64_t head_dim, state;
};
// Layer norm with a bias, in place.
struct BiasedNorm {
  Slot slot;
  std::string name;
  int64_t features;
  float eps;
};
// The keys that latent attention looks at where there are more than `top_k` (kernels/attention/key_choice.h): `q` has
// queries of `heads` heads, `k` one key, `weights` a weight for every head. The choice is no slot: it stands until the
// next KeyChoice of the pass, in whatever block (Activations::choice, src/run/block.h).
struct KeyChoice {
  Slot q, k, weights;
  int heads;
  int64_t head_dim, top_k;
  int64_t every = 1;  // above 1: the keys are those of blocks of so many tokens (CompressKeys)
};
// Attention whose keys and values are made from a latent of `rank` features a token (DeepSeek-V2, 2024, section 2.1):
// the key of a head is its part of `kv` and k_rope, which all heads share; the rest of its part of `kv` is the value.
// `kv` is what the linear `kv_b` makes of `latent`. Over a cache, which keeps latent and k_rope, the op may take that
// linear's weights into the queries and the outputs instead (kernels/attention/latent_attention.h); so kv_b is loaded
// dense, with the values that its codes stand for.
struct LatentAttention {
  Slot q_nope, q_rope, kv, k_rope, latent, out;
  std::string kv_b;
  int heads;
  int64_t nope, rope, value, rank;  // features: of a head's key that do not turn, that do; of its value; of the latent
  float scale;
  bool chosen = false;  // it sees the keys of the last KeyChoice alone
};
// A key for every `every` tokens (kernels/shared_keys/compress_keys.h), in the row of the last of them: of the tensors
// `name`.ape and `name`.norm. With `overlap` k and gate are twice as wide as the key.
struct CompressKeys {
  Slot k, gate, out;
  std::string name;
  int64_t every, head_dim;
  bool overlap;
  RopeParams rope;
  float eps;
  int64_t width() const { return overlap ? 2 * head_dim : head_dim; }
};
// Attention of all heads over the same keys, which are the values too (kernels/shared_keys/shared_key_attention.h):
// those of a window, and those that CompressKeys made, or the last KeyChoice chose of them.
struct SharedKeyAttention {
  Slot q, k, far, out;  // far == Slot::count: the window alone
  std::string sinks;
  int heads;
  int64_t head_dim;
  float scale;
  int64_t window, every = 1;
  bool chosen = false;
  bool sees_far() const { return far != Slot::count; }
};
// Several residual streams side by side in x (kernels/streams/streams.h): what a branch reads of them, and how what it
// makes goes back, by the tensors `name`_fn, _base and _scale.
struct ReadStreams {
  Slot in, out, mix;
  std::string name;
  int streams;
  int64_t hidden;
  float norm_eps, eps;
  int rounds;
};
struct WriteStreams {
  Slot in, mix, out;
};
// A router of experts that the token itself says (kernels/model/route.h): `table` [vocab, top_k] of integers.
// `out` has the weight of every expert, 0 of those that are not meant.
struct TokenRoute {
  Slot in, out;
  std::string router, table;
  int64_t hidden, vocab;
  int experts, top_k;
  bool renormalise;
  float scaling;
};

}  // namespace fewbit
