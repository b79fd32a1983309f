#pragma once
// RopeParams: a rotary embedding as its kernels take it.
#include <cstdint>
#include <vector>

namespace fewbit {

struct RopeParams {
  std::vector<float> inv_freq;  // [rot / 2], scaling of the config already applied
  float attention_scale = 1;
  // What YaRN multiplies the scores of latent attention by: its temperature for all features, squared (DeepSeek-V2,
  // 2024, section 3.1.3; `mscale_all_dim`).
  float score_scale = 1;
  // LongRoPE: another table for runs whose sequences may have more than `original_positions`; 0: one table for all.
  std::vector<float> long_inv_freq{};
  int64_t original_positions = 0;

  bool turns_long(int64_t longest) const { return original_positions > 0 && longest > original_positions; }
  // That of a run whose sequences have up to `longest` positions.
  const std::vector<float>& table(int64_t longest) const { return turns_long(longest) ? long_inv_freq : inv_freq; }
};

}  // namespace fewbit
