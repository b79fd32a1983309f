#pragma once
// The static scales of an FP8 key/value cache: a side table of the checkpoint, one entry per layer.
// docs/formats/compressed-tensors.md has the tensors.
#include <optional>
#include <string>
#include <vector>

#include "formats/packing.h"

namespace fewbit {

// value = E4M3 code * scale. One scale of all heads, or one per kv head.
struct KvScales {
  std::vector<float> k{}, v{};
};

// Every name under which the scales of the attention module `name` may be stored.
std::vector<std::string> kv_scale_names(const std::string& name);

// The scales of the attention module `name` ("model.layers.0.self_attn") in any known spelling, nothing where
// there are none. Where only one of the two is stored it serves both. Error{checkpoint} naming a tensor of
// another count than 1 or `kv_heads`, or a scale that is not positive and finite.
std::optional<KvScales> read_kv_scales(const std::string& name, int64_t kv_heads, const TensorSource&);

// "<name>.k_scale" and "<name>.v_scale", F32 [1], or [kv_heads, 1, 1].
std::vector<NamedTensor> kv_scale_tensors(const std::string& name, const KvScales&);

}  // namespace fewbit
