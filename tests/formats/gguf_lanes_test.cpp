// GGUF's encoders of several blocks side by side give the bytes of those that take one block at a time.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "formats/gguf/block_type.h"
#include "src/core/half.h"
#include "src/core/rng.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

using gguf::BlockType;

constexpr int64_t kBlocks = 53;  // more than two times sixteen, and a remainder

struct Kind {
  const char* name;
  // Value i of a block, from numbers that are normally distributed.
  std::function<float(int64_t i, float normal)> value;
};

const std::vector<Kind>& kinds() {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min(), kMost = std::numeric_limits<float>::max();
  static const std::vector<Kind> all = {
      {"normal", [](int64_t, float z) { return 0.02f * z; }},
      {"bf16", [](int64_t, float z) { return static_cast<float>(bf16(z)); }},
      {"heavy tails", [](int64_t, float z) { return z * z * z; }},
      {"alternating extremes", [](int64_t i, float) { return i % 2 ? 1.f : -1.f; }},
      {"halves of steps", [](int64_t i, float) { return static_cast<float>(i % 33 - 16) / 2; }},
      {"one value", [](int64_t, float) { return -0.37f; }},
      {"zeros", [](int64_t i, float) { return i % 3 ? 0.f : -0.f; }},
      {"zero blocks between others", [](int64_t i, float z) { return i / 32 % 3 ? z : 0.f; }},
      {"few values", [](int64_t i, float z) { return i % 32 == 5 ? z : 0.f; }},
      {"positive", [](int64_t, float z) { return 3 + 0.1f * z; }},
      {"negative", [](int64_t, float z) { return -3 - z * z; }},
      {"the last bit", [](int64_t i, float) { return i % 7 ? 1.f : std::nextafter(1.f, 2.f); }},
      {"below f16", [](int64_t, float z) { return 1e-9f * z; }},
      {"subnormal scales", [](int64_t, float z) { return 1e-6f * z; }},
      {"squares below f32", [](int64_t, float z) { return 1e-25f * z; }},
      {"denormal", [](int64_t i, float) { return kLeast * static_cast<float>(i % 19 - 9); }},
      {"above f16", [](int64_t, float z) { return 1e5f * z; }},
      {"huge", [](int64_t i, float z) { return i % 11 ? 1e10f * z : -kMost / 16; }},
      {"all sizes", [](int64_t i, float z) { return std::ldexp(z, static_cast<int>(i / 32 % 60) - 45); }},
  };
  return all;
}

std::vector<float> values_of(const Kind& kind, int64_t n) {
  const Tensor normal = random_normal(DType::f32, {1, n}, 7);
  std::vector<float> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = kind.value(i, normal.as<float>()[i]);
  return x;
}

// The first block of `type` that encode_many() writes other than encode(), or -1.
int64_t first_other_block(const BlockType& type, const std::vector<float>& x, const std::vector<float>& weight) {
  const int64_t blocks = static_cast<int64_t>(x.size()) / type.elements;
  std::vector<uint8_t> many(static_cast<size_t>(blocks * type.bytes)), one(static_cast<size_t>(type.bytes));
  type.encode_many(x.data(), weight.data(), blocks, many.data());
  for (int64_t b = 0; b < blocks; ++b) {
    type.encode(x.data() + b * type.elements, weight.data() + b * type.elements, one.data());
    if (std::memcmp(one.data(), many.data() + b * type.bytes, one.size()) != 0) return b;
  }
  return -1;
}

TEST(GgufLanes, BytesOfTheEncodersOfOneBlock) {
  int types = 0;
  for (const BlockType* type : gguf::block_types()) {
    if (!type->encode_many) continue;
    ++types;
    // Blocks of 256 are fewer, with the same number of their parts.
    const int64_t n = (type->elements == 256 ? 11 : kBlocks) * type->elements;
    for (const Kind& kind : kinds()) {
      const std::vector<float> x = values_of(kind, n);
      std::vector<float> own(x.size()), random(x.size());
      const Tensor normal = random_normal(DType::f32, {1, n}, 8);
      for (size_t i = 0; i < x.size(); ++i) {
        own[i] = std::max(x[i] * x[i] + 0.5f * x[i / 32 * 32] * x[i / 32 * 32], 1e-30f);
        random[i] = std::exp(3 * normal.as<float>()[i]);
      }
      for (const auto* weight : {&own, &random})
        EXPECT_EQ(first_other_block(*type, x, *weight), -1)
            << type->name << " of " << kind.name << (weight == &own ? ", weights of their own" : ", random weights");
    }
  }
  EXPECT_EQ(types, 12);
}

}  // namespace
}  // namespace fewbit::test
