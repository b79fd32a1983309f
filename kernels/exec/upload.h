#pragma once
// upload(): a host vector as a tensor on the device of an Exec.
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/exec/exec.h"

namespace fewbit {

// [n] of the element's own dtype: f32, f64, i32, i64 or u8. The copy is done when it returns. An empty vector gives an
// empty Tensor, which ops take for an absent argument.
template <class T>
Tensor upload(Exec& ex, const std::vector<T>& values) {
  constexpr bool kKnown = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, int32_t> ||
                          std::is_same_v<T, int64_t> || std::is_same_v<T, uint8_t>;
  static_assert(kKnown, "an element type that names one dtype");
  constexpr DType kType = std::is_same_v<T, float>     ? DType::f32
                          : std::is_same_v<T, double>  ? DType::f64
                          : std::is_same_v<T, int32_t> ? DType::i32
                          : std::is_same_v<T, int64_t> ? DType::i64
                                                       : DType::u8;
  if (values.empty()) return {};
  return ex.to_device(ConstTensorView{values.data(), kType, {static_cast<int64_t>(values.size())}, {}});
}

}  // namespace fewbit
