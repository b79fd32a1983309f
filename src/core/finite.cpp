// In every type of float the values that are not finite are those whose exponent has all bits set; of E4M3, which has
// no infinities, those whose mantissa has them too, and of E8M0 the one pattern of all ones.
#include "src/core/finite.h"

#include <algorithm>
#include <cstring>

namespace fewbit {
namespace {

// The first element that has all bits of `mask`. Blocks are only asked whether they hold one, without a branch for
// each element, so that the compiler makes vectors of them.
template <class Word>
int64_t first_with(const uint8_t* data, int64_t count, Word mask) {
  constexpr int64_t kBlock = 1024;
  const auto word = [&](int64_t i) {
    Word w;
    std::memcpy(&w, data + i * static_cast<int64_t>(sizeof(Word)), sizeof w);
    return w;
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    Word any = 0;
    for (int64_t i = begin; i < end; ++i) any |= static_cast<Word>((word(i) & mask) == mask);
    if (!any) continue;
    for (int64_t i = begin; i < end; ++i)
      if ((word(i) & mask) == mask) return i;
  }
  return -1;
}

}  // namespace

bool can_be_infinite(DType d) {
  switch (d) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
      return true;
    default:
      return false;
  }
}

int64_t first_not_finite(DType d, const void* data, int64_t count) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  switch (d) {
    case DType::f64:
      return first_with<uint64_t>(bytes, count, 0x7ff0000000000000u);
    case DType::f32:
      return first_with<uint32_t>(bytes, count, 0x7f800000u);
    case DType::f16:
      return first_with<uint16_t>(bytes, count, 0x7c00u);
    case DType::bf16:
      return first_with<uint16_t>(bytes, count, 0x7f80u);
    case DType::f8_e4m3:
      return first_with<uint8_t>(bytes, count, 0x7fu);
    case DType::f8_e5m2:
      return first_with<uint8_t>(bytes, count, 0x7cu);
    case DType::f8_e8m0:
      return first_with<uint8_t>(bytes, count, 0xffu);
    default:
      return -1;
  }
}

}  // namespace fewbit
