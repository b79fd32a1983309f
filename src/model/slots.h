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
  fused,  // what a Split takes apart into q and its gate, or into qkv and z
  z,      // the gate of what a mixer made
  conv,   // qkv behind the short convolution
  beta,   // of the delta rule, as `decay`
  decay,
  rates,   // both in one
  shared,  // what the shared expert made
  share,   // its gate
  route,   // what the router reads, where that is not what the experts read
  count
};
inline constexpr int kSlots = static_cast<int>(Slot::count);
const char* name_of(Slot s);

}  // namespace fewbit
