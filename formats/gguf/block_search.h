#pragma once
// Searches for the scales of a block: which scale (and minimum) makes sum weight (value - decoded)^2 least.
// Each candidate scale gives codes by rounding; the codes give the least-squares scale; the best of all is
// kept. Internal to formats/gguf.
#include <cstdint>
#include <cstring>
#include <span>

#include "formats/bits.h"
#include "src/core/half.h"

namespace fewbit::gguf {

// Candidate scales relative to the one that just covers the range: a smaller scale clips the extremes.
inline constexpr int kCandidates = 32;
constexpr float candidate(int t) { return 0.80f + (1.10f - 0.80f) * static_cast<float>(t) / kCandidates; }

struct Affine {
  float scale = 0, min = 0;  // decoded = scale * code + min
};
enum class MinSign : uint8_t { any, not_positive };

// Codes 0 … top. A block of one repeated value gets scale 0 where `min` can hold it.
Affine search_affine(const float* x, const float* weight, int n, int top, MinSign);
// decoded = scale * code, codes low … high (low < 0); the scale may be negative.
float search_symmetric(const float* x, const float* weight, int n, int low, int high);

// The same where codes 0 … point into a table of levels, ascending.
float search_levels(const float* x, const float* weight, int n, std::span<const float> levels);
int nearest_level(std::span<const float> levels, float v);

// Nearest codes on a given grid, clamped; all 0 where the scale is 0.
void affine_codes(const float* x, int n, Affine, int top, int* codes);
void symmetric_codes(const float* x, int n, float scale, int low, int high, int* codes);

inline float load_f16(const uint8_t* at) { return f16_to_f32(bits::load<uint16_t>(at, 0)); }
// Stores v as f16 and returns what a reader will see.
inline float store_f16(uint8_t* at, float v) {
  const uint16_t h = f32_to_f16(v);
  std::memcpy(at, &h, sizeof h);
  return f16_to_f32(h);
}

using Decode = void (*)(const uint8_t* block, float* values);
// Replaces `block`, of n values, by `found` where that is nearer to x in sum weight (x - decoded)^2: a search never
// ends worse than the plain rule.
void keep_better(Decode decode, int n, const float* x, const float* weight, const uint8_t* found, int64_t bytes,
                 uint8_t* block);

}  // namespace fewbit::gguf
