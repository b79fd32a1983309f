// MXFP4, type 39: 32 values under one power of two.
//   e E8M0, qs[16]   w = 2^(e - 127) E2M1(v), low nibbles the first half, high nibbles the second
#include "formats/gguf/mxfp4_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/gguf/block_search.h"
#include "src/core/half.h"

namespace fewbit::gguf {
namespace {

constexpr int kBlock = 32;
constexpr int64_t kBytes = 1 + kBlock / 2;
constexpr int kMaxScale = 254;  // 255 is NaN

void decode(const uint8_t* block, float* values) {
  const MxBlock b = load_mx(block);
  for (int x = 0; x < kBlock; ++x) values[x] = b.scale * f4_e2m1_to_f32(b.codes[x]);
}

// The nearest code, of equally near ones the first in the order of the codes, as gguf-py has it.
uint8_t nearest(float x, float scale) {
  uint8_t best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (uint8_t code = 0; code < 16; ++code)
    if (const float error = std::fabs(scale * f4_e2m1_to_f32(code) - x); error < least) least = error, best = code;
  return best;
}

void put(const float* x, int exponent, uint8_t* block) {
  MxBlock b{.scale = f8_e8m0_to_f32(static_cast<uint8_t>(exponent))};
  for (int i = 0; i < kBlock; ++i) b.codes[i] = nearest(x[i], b.scale);
  store_mx(b, block);
}

// The largest value's binade gets E2M1's largest, 4 to 6.
int exponent_of(const float* x) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest > 0 ? std::clamp(std::ilogb(largest) - 2 + 127, 0, kMaxScale) : 0;
}

void encode_plain(const float* x, uint8_t* block) { put(x, exponent_of(x), block); }

void encode(const float* x, const float* weight, uint8_t* block) {
  encode_plain(x, block);
  const int usual = exponent_of(x);
  for (const int exponent : {usual - 1, usual + 1}) {
    if (exponent < 0 || exponent > kMaxScale) continue;
    uint8_t found[kBytes];
    put(x, exponent, found);
    keep_better(decode, kBlock, x, weight, found, kBytes, block);
  }
}

}  // namespace

MxBlock load_mx(const uint8_t* block) {
  MxBlock b{.scale = f8_e8m0_to_f32(block[0])};
  for (int x = 0; x < kBlock; ++x) b.codes[x] = (block[1 + x % 16] >> (4 * (x / 16))) & 15;
  return b;
}

void store_mx(const MxBlock& b, uint8_t* block) {
  block[0] = f32_to_f8_e8m0(b.scale);
  for (int x = 0; x < kBlock / 2; ++x) block[1 + x] = static_cast<uint8_t>(b.codes[x] | (b.codes[x + 16] << 4));
}

constinit const BlockType type_mxfp4 = {
    .id = 39,
    .name = "mxfp4",
    .elements = kBlock,
    .bytes = kBytes,
    .grid = kMxfp4,
    .decode = decode,
    .encode = encode,
    .encode_plain = encode_plain,
};

}  // namespace fewbit::gguf
