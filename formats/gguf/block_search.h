#pragma once
// Searches for the scales of a block: which scale (and minimum) makes sum weight (value - decoded)^2 least.
// Each candidate scale gives codes by rounding; the codes give the least-squares scale; the best of all is
// kept. Internal to formats/gguf.
#include <cstdint>
#include <cstring>

#include "formats/bits.h"
#include "src/core/half.h"

namespace fewbit::gguf {

struct Affine {
  float scale = 0, min = 0;  // decoded = scale * code + min
};
enum class MinSign : uint8_t { any, not_positive };

// Codes 0 … top. A block of one repeated value gets scale 0 where `min` can hold it.
Affine search_affine(const float* x, const float* weight, int n, int top, MinSign);
// decoded = scale * code, codes low … high (low < 0); the scale may be negative.
float search_symmetric(const float* x, const float* weight, int n, int low, int high);

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

// sum weight (x - decoded)^2 of a block.
template <int kElements>
double block_error(void (*decode)(const uint8_t*, float*), const float* x, const float* weight, const uint8_t* block) {
  float values[kElements];
  decode(block, values);
  double sum = 0;
  for (int i = 0; i < kElements; ++i) {
    const double e = static_cast<double>(x[i]) - values[i];
    sum += weight[i] * e * e;
  }
  return sum;
}

// Replaces `block` by `found` where that is nearer to x: a search never ends worse than the plain rule.
template <int kElements>
void keep_better(void (*decode)(const uint8_t*, float*), const float* x, const float* weight, const uint8_t* found,
                 int64_t bytes, uint8_t* block) {
  if (block_error<kElements>(decode, x, weight, found) < block_error<kElements>(decode, x, weight, block))
    std::memcpy(block, found, static_cast<size_t>(bytes));
}

}  // namespace fewbit::gguf
