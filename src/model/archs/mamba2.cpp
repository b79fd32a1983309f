#include "src/model/archs/mamba2.h"

#include <fmt/format.h>

#include <cmath>

namespace fewbit {
namespace {

// Step sizes are positive, so that [0, infinity] is no limit. No published model has another; the scan knows of none.
void check_step_limits(const ConfigView& c) {
  for (const char* key : {"time_step_limit", "mamba_dt_limit"}) {
    const auto [low, high] = c.interval(key);
    if (low > 0 || !std::isinf(high))
      fail(ErrorKind::unsupported,
           fmt::format(
               "{}: {}: found [{}, {}]; only [0, Infinity] is supported, which limits no step of the state space",
               c.where(), key, low, high));
  }
}

}  // namespace

std::vector<BlockOp> mamba2(const ConfigView& c, const DecoderSizes& s, const std::string& prefix,
                            const Mamba2Sizes& m) {
  using S = Slot;
  check_step_limits(c);
  const int64_t inner = m.heads * m.head_dim, mixed = inner + 2 * m.groups * m.state;
  if (m.heads % m.groups != 0 || inner % m.norm_groups != 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected a divisor of the state space's heads ({}), found {}",
                                            c.where(), m.groups_key, m.heads, m.groups));
  return {
      Linears{S::h, {{prefix + "in_proj", S::fused, inner + mixed + m.heads, s.hidden, m.bias}}},
      Split{S::fused, {{S::z, inner}, {S::qkv, mixed}, {S::decay, m.heads}}},
      ShortConv{S::qkv, S::conv, prefix + "conv1d", mixed, m.taps, true, m.conv_bias},
      StateScan{S::conv, S::decay, S::attn, prefix + "A_log", prefix + "dt_bias", prefix + "D", m.heads, m.groups,
                m.head_dim, m.state},
      GatedAct{S::z, S::attn, S::attn, Activation::silu},
      HeadNorm{S::attn, NormKind::rms, "", inner / m.norm_groups, s.eps},
      Scale{S::attn, prefix + "norm.weight", inner},
      Linears{S::attn, {{prefix + "out_proj", S::h, s.hidden, inner, m.bias}}},
  };
}

}  // namespace fewbit
