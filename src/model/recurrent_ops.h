#pragma once
// The ops of a block that remember what they saw of a sequence, in place of keys and values.
#include <cstdint>
#include <string>

#include "src/model/slots.h"

namespace fewbit {

// Causal convolution of a few taps over every channel, then SiLU: `name` is [channels, 1, taps].
struct ShortConv {
  Slot in, out;
  std::string name;
  int64_t channels, taps;
  bool silu = true, bias = false;  // [channels]
};
// Gated delta rule (kernels/recurrent/delta_rule.h) over qkv = q, k, v side by side. Its two vectors are [v_heads].
struct DeltaRule {
  Slot qkv, beta, decay, out;
  std::string a_log, dt_bias;
  int k_heads, v_heads;
  int64_t k_dim, v_dim;
};
// Selective state space (kernels/recurrent/state_scan.h) over in = x, B, C side by side. Its three vectors are [heads].
struct StateScan {
  Slot in, dt, out;
  std::string a_log, dt_bias, d;
  int heads, groups;
  int64_t head_dim, state;
};

}  // namespace fewbit
