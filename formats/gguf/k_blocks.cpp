// K-quants: super-blocks of 256 whose sub-blocks have integer scales of a common f16 scale.
//   q4_k  d f16, dmin f16, scales[12], qs[128]           8 sub-blocks of 32   w = d sc v - dmin mn
//   q5_k  d, dmin, scales[12], qh[32], qs[128]           the same, bit 4 in qh
//   q6_k  ql[128], qh[64], int8 scales[16], d            16 sub-blocks of 16  w = d sc (v - 32)
//   q2_k  scales[16] (low 4 bits sc, high mn), qs[64], d, dmin    16 of 16    w = d sc v - dmin mn
//   q3_k  hmask[32], qs[64], scales[12], d                        16 of 16    w = d (sc - 32) (v - 4)
// docs/formats/gguf.md has the places of the fields.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/gguf/block_search.h"
#include "formats/gguf/block_type.h"

namespace fewbit::gguf {
namespace {

constexpr int kSuper = 256;

// --- q4_k and q5_k: scales and minima
// -------------------------------------------------------------------------

constexpr int kSubBlocks = 8, kSub = kSuper / kSubBlocks, kTopScale = 63;

struct ScaleAndMin {
  uint8_t scale[kSubBlocks] = {}, min[kSubBlocks] = {};  // 6 bits each
};

// 16 values of 6 bits in 12 bytes: the first four scales and minima whole, the others split into 4 and 2
// bits.
ScaleAndMin load_scales(const uint8_t* s) {
  ScaleAndMin out;
  for (int j = 0; j < 4; ++j) {
    out.scale[j] = s[j] & 63;
    out.min[j] = s[j + 4] & 63;
    out.scale[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | ((s[j] >> 6) << 4));
    out.min[j + 4] = static_cast<uint8_t>((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
  }
  return out;
}
void store_scales(const ScaleAndMin& v, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    s[j] = static_cast<uint8_t>(v.scale[j] | ((v.scale[j + 4] >> 4) << 6));
    s[j + 4] = static_cast<uint8_t>(v.min[j] | ((v.min[j + 4] >> 4) << 6));
    s[j + 8] = static_cast<uint8_t>((v.scale[j + 4] & 15) | ((v.min[j + 4] & 15) << 4));
  }
}

// A whole super-block before it is packed.
struct AffineSuper {
  float d = 0, dmin = 0;  // as f16 holds them
  ScaleAndMin sub;
  int codes[kSuper] = {};
  double error = HUGE_VAL;

  Affine grid(int j) const { return {d * sub.scale[j], -(dmin * sub.min[j])}; }
};

double sub_error(const float* x, const float* w, Affine grid, int top, int* codes) {
  affine_codes(x, kSub, grid, top, codes);
  double sum = 0;
  for (int i = 0; i < kSub; ++i) {
    const double e = x[i] - (grid.scale * static_cast<float>(codes[i]) + grid.min);
    sum += w[i] * e * e;
  }
  return sum;
}

int rounded_scale(float v, float unit) {
  return unit > 0 ? std::clamp(static_cast<int>(std::lrintf(v / unit)), 0, kTopScale) : 0;
}

// Integer scales for given d and dmin: of the nearest ones and their neighbours (`reach` apart) the pair that
// leaves the least error, with the codes that belong to it.
void choose_sub_scales(const float* x, const float* w, const Affine* wanted, int reach, int top, AffineSuper& s) {
  s.error = 0;
  for (int j = 0; j < kSubBlocks; ++j) {
    const float *xs = x + j * kSub, *ws = w + j * kSub;
    const int scale = rounded_scale(wanted[j].scale, s.d), min = rounded_scale(-wanted[j].min, s.dmin);
    double least = HUGE_VAL;
    int codes[kSub];
    for (int a = std::max(scale - reach, 0); a <= std::min(scale + reach, kTopScale); ++a)
      for (int b = std::max(min - reach, 0); b <= std::min(min + reach, kTopScale); ++b) {
        const Affine grid{s.d * static_cast<float>(a), -(s.dmin * static_cast<float>(b))};
        const double error = sub_error(xs, ws, grid, top, codes);
        if (error >= least) continue;
        least = error;
        s.sub.scale[j] = static_cast<uint8_t>(a);
        s.sub.min[j] = static_cast<uint8_t>(b);
        std::copy_n(codes, kSub, s.codes + j * kSub);
      }
    s.error += least;
  }
}

// d and dmin by least squares for given codes and integer scales; false where they are not determined.
bool refit(const float* x, const float* w, AffineSuper& s) {
  double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
  for (int i = 0; i < kSuper; ++i) {
    const int j = i / kSub;
    const double a = s.sub.scale[j] * s.codes[i], b = -static_cast<double>(s.sub.min[j]), v = w[i];
    aa += v * a * a;
    ab += v * a * b;
    bb += v * b * b;
    xa += v * x[i] * a;
    xb += v * x[i] * b;
  }
  const double det = aa * bb - ab * ab;
  double d = 0, dmin = 0;
  if (det > 1e-9 * aa * bb) {
    d = (bb * xa - ab * xb) / det;
    dmin = (aa * xb - ab * xa) / det;
  } else if (aa > 0) {
    d = xa / aa;
  }
  if (!(d > 0) || dmin < 0) return false;
  s.d = round_to_f16(static_cast<float>(d));
  s.dmin = round_to_f16(static_cast<float>(dmin));
  return true;
}

void common_scales(const Affine* wanted, AffineSuper& s) {
  float scale = 0, min = 0;
  for (int j = 0; j < kSubBlocks; ++j) {
    scale = std::max(scale, wanted[j].scale);
    min = std::max(min, -wanted[j].min);
  }
  s.d = round_to_f16(scale / kTopScale);
  s.dmin = round_to_f16(min / kTopScale);
}

// Every sub-block covers its range (and 0); scales to the nearest integer.
AffineSuper plain_super(const float* x, int top) {
  static constexpr float kEqual[kSuper] = {};
  Affine wanted[kSubBlocks];
  for (int j = 0; j < kSubBlocks; ++j) {
    const auto [low, high] = std::minmax_element(x + j * kSub, x + (j + 1) * kSub);
    const float min = std::min(*low, 0.f);
    wanted[j] = {(std::max(*high, min) - min) / static_cast<float>(top), min};
  }
  AffineSuper s;
  common_scales(wanted, s);
  choose_sub_scales(x, kEqual, wanted, 0, top, s);
  return s;
}

AffineSuper searched_super(const float* x, const float* w, int top) {
  constexpr int kRounds = 3;
  Affine wanted[kSubBlocks];
  for (int j = 0; j < kSubBlocks; ++j)
    wanted[j] = search_affine(x + j * kSub, w + j * kSub, kSub, top, MinSign::not_positive);
  AffineSuper best, s;
  common_scales(wanted, s);
  for (int round = 0; round < kRounds; ++round) {
    choose_sub_scales(x, w, wanted, 1, top, s);
    if (s.error >= best.error) break;
    best = s;
    if (!refit(x, w, s)) break;
  }
  return best;
}

template <int kBits>
struct AffineK {
  static constexpr int kTop = (1 << kBits) - 1;
  static constexpr int kScales = 4, kHigh = 16, kLow = kBits == 5 ? 48 : 16;
  static constexpr int64_t kBytes = kLow + kSuper / 2;

  static void decode(const uint8_t* block, float* values) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const ScaleAndMin sub = load_scales(block + kScales);
    for (int x = 0; x < kSuper; ++x) {
      const int j = x / kSub;
      int v = (block[kLow + 32 * (x / 64) + x % 32] >> (4 * (x % 64 / 32))) & 15;
      if constexpr (kBits == 5) v |= ((block[kHigh + x % 32] >> j) & 1) << 4;
      values[x] = d * static_cast<float>(sub.scale[j]) * static_cast<float>(v) - dmin * static_cast<float>(sub.min[j]);
    }
  }
  static void store(const AffineSuper& s, uint8_t* block) {
    std::memset(block, 0, static_cast<size_t>(kBytes));
    store_f16(block, s.d);
    store_f16(block + 2, s.dmin);
    store_scales(s.sub, block + kScales);
    for (int x = 0; x < kSuper; ++x) {
      block[kLow + 32 * (x / 64) + x % 32] |= static_cast<uint8_t>((s.codes[x] & 15) << (4 * (x % 64 / 32)));
      if constexpr (kBits == 5) block[kHigh + x % 32] |= static_cast<uint8_t>((s.codes[x] >> 4) << (x / kSub));
    }
  }
  static void encode_plain(const float* x, uint8_t* block) { store(plain_super(x, kTop), block); }
  static void encode(const float* x, const float* weight, uint8_t* block) {
    uint8_t found[kBytes];
    store(searched_super(x, weight, kTop), found);
    encode_plain(x, block);
    keep_better<kSuper>(decode, x, weight, found, kBytes, block);
  }
};

// --- q6_k: signed scales
// --------------------------------------------------------------------------------------

constexpr int kSixSub = 16, kSixSubBlocks = kSuper / kSixSub;
constexpr int64_t kSixBytes = 210;
constexpr int kSixHigh = 128, kSixScales = 192, kSixD = 208;

struct SixSuper {
  float d = 0;
  int scale[kSixSubBlocks] = {};
  int codes[kSuper] = {};  // -32 … 31
  double error = HUGE_VAL;
};

void decode_q6_k(const uint8_t* block, float* values) {
  const float d = load_f16(block + kSixD);
  for (int x = 0; x < kSuper; ++x) {
    const int h = x / 128, part = x % 128 / 32, l = x % 32;
    const int low = (block[64 * h + l + 32 * (part & 1)] >> (4 * (part >> 1))) & 15;
    const int high = (block[kSixHigh + 32 * h + l] >> (2 * part)) & 3;
    const auto scale = static_cast<float>(static_cast<int8_t>(block[kSixScales + x / kSixSub]));
    values[x] = d * scale * static_cast<float>((low | (high << 4)) - 32);
  }
}

void store_q6_k(const SixSuper& s, uint8_t* block) {
  std::memset(block, 0, kSixBytes);
  store_f16(block + kSixD, s.d);
  for (int j = 0; j < kSixSubBlocks; ++j) block[kSixScales + j] = static_cast<uint8_t>(s.scale[j]);
  for (int x = 0; x < kSuper; ++x) {
    const int h = x / 128, part = x % 128 / 32, l = x % 32, v = s.codes[x] + 32;
    block[64 * h + l + 32 * (part & 1)] |= static_cast<uint8_t>((v & 15) << (4 * (part >> 1)));
    block[kSixHigh + 32 * h + l] |= static_cast<uint8_t>((v >> 4) << (2 * part));
  }
}

void choose_six_scales(const float* x, const float* w, const float* wanted, int reach, SixSuper& s) {
  s.error = 0;
  for (int j = 0; j < kSixSubBlocks; ++j) {
    const int middle = s.d != 0 ? static_cast<int>(std::lrintf(wanted[j] / s.d)) : 0;
    double least = HUGE_VAL;
    for (int a = std::clamp(middle - reach, -128, 127); a <= std::clamp(middle + reach, -128, 127); ++a) {
      int codes[kSixSub];
      const float scale = s.d * static_cast<float>(a);
      symmetric_codes(x + j * kSixSub, kSixSub, scale, -32, 31, codes);
      double error = 0;
      for (int i = 0; i < kSixSub; ++i) {
        const double e = x[j * kSixSub + i] - scale * static_cast<float>(codes[i]);
        error += w[j * kSixSub + i] * e * e;
      }
      if (error >= least) continue;
      least = error;
      s.scale[j] = a;
      std::copy_n(codes, kSixSub, s.codes + j * kSixSub);
    }
    s.error += least;
  }
}

// d such that the largest scale becomes -128.
void common_six_scale(const float* wanted, SixSuper& s) {
  const float* extreme =
      std::max_element(wanted, wanted + kSixSubBlocks, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  s.d = round_to_f16(*extreme / -128);
}

void encode_plain_q6_k(const float* x, uint8_t* block) {
  static constexpr float kEqual[kSuper] = {};
  float wanted[kSixSubBlocks];
  for (int j = 0; j < kSixSubBlocks; ++j) {
    const float* sub = x + j * kSixSub;
    wanted[j] =
        *std::max_element(sub, sub + kSixSub, [](float a, float b) { return std::fabs(a) < std::fabs(b); }) / -32;
  }
  SixSuper s;
  common_six_scale(wanted, s);
  choose_six_scales(x, kEqual, wanted, 0, s);
  store_q6_k(s, block);
}

void encode_q6_k(const float* x, const float* weight, uint8_t* block) {
  constexpr int kRounds = 3;
  float wanted[kSixSubBlocks];
  for (int j = 0; j < kSixSubBlocks; ++j)
    wanted[j] = search_symmetric(x + j * kSixSub, weight + j * kSixSub, kSixSub, -32, 31);
  SixSuper best, s;
  common_six_scale(wanted, s);
  for (int round = 0; round < kRounds; ++round) {
    choose_six_scales(x, weight, wanted, 1, s);
    if (s.error >= best.error) break;
    best = s;
    double xa = 0, aa = 0;
    for (int i = 0; i < kSuper; ++i) {
      const double a = static_cast<double>(s.scale[i / kSixSub]) * s.codes[i];
      xa += weight[i] * x[i] * a;
      aa += weight[i] * a * a;
    }
    if (!(aa > 0)) break;
    s.d = round_to_f16(static_cast<float>(xa / aa));
  }
  uint8_t found[kSixBytes];
  store_q6_k(best, found);
  encode_plain_q6_k(x, block);
  keep_better<kSuper>(decode_q6_k, x, weight, found, kSixBytes, block);
}

// --- read only
// ------------------------------------------------------------------------------------------------

void decode_q2_k(const uint8_t* block, float* values) {
  const uint8_t* qs = block + 16;
  const float d = load_f16(block + 80), dmin = load_f16(block + 82);
  for (int x = 0; x < kSuper; ++x) {
    const int h = x / 128, part = x % 128 / 32;
    const int v = (qs[32 * h + x % 32] >> (2 * part)) & 3;
    const uint8_t s = block[x / 16];
    values[x] = d * static_cast<float>(s & 15) * static_cast<float>(v) - dmin * static_cast<float>(s >> 4);
  }
}

void decode_q3_k(const uint8_t* block, float* values) {
  const uint8_t *qs = block + 32, *scales = block + 96;
  const float d = load_f16(block + 108);
  for (int x = 0; x < kSuper; ++x) {
    const int h = x / 128, part = x % 128 / 32, j = x / 16;
    const int low = (qs[32 * h + x % 32] >> (2 * part)) & 3;
    const int high = (block[x % 32] >> (4 * h + part)) & 1;
    const int s = ((scales[j % 8] >> (4 * (j / 8))) & 15) | (((scales[8 + j % 4] >> (2 * (j / 4))) & 3) << 4);
    values[x] = d * static_cast<float>(s - 32) * static_cast<float>((low | (high << 2)) - 4);
  }
}

template <int kBits>
constexpr BlockType affine_type(uint32_t id, std::string_view name) {
  using K = AffineK<kBits>;
  return {.id = id,
          .name = name,
          .elements = kSuper,
          .bytes = K::kBytes,
          .grid = QuantSpec{.bits = kBits, .group = kSub, .symmetric = false},
          .decode = K::decode,
          .encode = K::encode,
          .encode_plain = K::encode_plain};
}

}  // namespace

constinit const BlockType type_q4_k = affine_type<4>(12, "q4_k");
constinit const BlockType type_q5_k = affine_type<5>(13, "q5_k");
constinit const BlockType type_q6_k = {
    .id = 14,
    .name = "q6_k",
    .elements = kSuper,
    .bytes = kSixBytes,
    .grid = QuantSpec{.bits = 6, .group = kSixSub},
    .decode = decode_q6_k,
    .encode = encode_q6_k,
    .encode_plain = encode_plain_q6_k,
};
constinit const BlockType type_q2_k = {
    .id = 10,
    .name = "q2_k",
    .elements = kSuper,
    .bytes = 84,
    .grid = QuantSpec{.bits = 2, .group = 16, .symmetric = false},
    .decode = decode_q2_k,
};
constinit const BlockType type_q3_k = {
    .id = 11,
    .name = "q3_k",
    .elements = kSuper,
    .bytes = 110,
    .grid = QuantSpec{.bits = 3, .group = 16},
    .decode = decode_q3_k,
};

}  // namespace fewbit::gguf
