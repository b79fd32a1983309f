#pragma once
// Activation slots of a block: what its ops read and write by name.
#include <cstdint>

namespace fewbit {

// [tokens, features]. x is the residual stream.
enum class Slot : uint8_t {
  x,
  h,
  q,
  k,
  v,
  attn,
  gate,
  up,
  act,
  qkv,
  gate_up,
  fused,   // what a Split takes apart into q and its gate, or into qkv and z
  z,       // the gate of what a mixer made
  conv,    // qkv, or x, B and C, behind the short convolution
  beta,    // of the delta rule, as `decay`
  decay,   // of the delta rule; the time step of a state scan
  rates,   // both in one
  shared,  // what the shared expert made
  share,   // its gate
  route,   // what the router reads, where that is not what the experts read
  conv_k,  // keys and values behind short convolutions of their own
  conv_v,
  q_latent,  // of latent attention: the compressed queries, and the compressed keys and values
  latent,
  q_nope,  // the parts of every head that do not turn, and those that do
  q_rope,
  k_rope,   // one for all heads
  kv,       // of every head its key's part that does not turn, then its value
  index_q,  // of the choice of keys
  index_k,
  index_weights,
  token,   // what the token alone gives to a layer
  near_k,  // keys and values that later layers with a window read too
  near_v,
  far_k,  // and those that layers without one do
  far_v,
  mix,      // how a branch goes back into several residual streams
  block_k,  // what a token offers to the key of its block of tokens, its gate, and the key
  block_gate,
  block_key,
  index_block_k,  // the same for the choice of keys; index_k is the key
  index_block_gate,
  count
};
inline constexpr int kSlots = static_cast<int>(Slot::count);
const char* name_of(Slot s);

}  // namespace fewbit
