#pragma once
// The mixer of Mamba-2 as the families with state spaces have it.
#include "src/model/archs/decoder.h"

namespace fewbit {

struct Mamba2Sizes {
  int heads = 0, groups = 1;
  const char* groups_key = "";  // of the config, for messages
  int64_t head_dim = 0, state = 0, taps = 4;
  bool bias = false, conv_bias = true;
  int norm_groups =
      1;  // of the norm behind the gate: features that share a root mean square are 1 / norm_groups of all
};

// h = out_proj(norm(silu(z) * scan(x, B, C, dt))), where in_proj of h is z, x, B, C and dt; the tensors' names begin
// with `prefix`, "mixer.". Error{checkpoint} where the groups do not divide the heads, Error{unsupported} where the
// config limits the steps.
std::vector<BlockOp> mamba2(const ConfigView&, const DecoderSizes&, const std::string& prefix, const Mamba2Sizes&);

}  // namespace fewbit
