#pragma once
// Arithmetic of an integer grid that the CPU and CUDA halves share word for word, so that both choose the same codes
// for the same weights. No contraction to fused multiply-add happens in here, on either side.
#include <cmath>
#include <cstdint>

#include "src/core/half.h"
#include "src/core/host_device.h"
#include "src/core/quantized_linear.h"

namespace fewbit {

FEWBIT_HD float mul_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
FEWBIT_HD float add_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction. Plain
// additions, so that the compiler can do several at once.
FEWBIT_HD float round_even(float x) { return add_rn(add_rn(x, 12582912.f), -12582912.f); }
FEWBIT_HD float clamp_to(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

// The level (code - zero) nearest to w on a grid; the bounds are whole numbers, so clamping may come first.
FEWBIT_HD float grid_level(float w, float scale, int zero, int max_code) {
  return round_even(clamp_to(w / scale, static_cast<float>(-zero), static_cast<float>(max_code - zero)));
}

// representable_scale() of src/core/quantized_linear.h, on either side.
FEWBIT_HD float stored_scale(float s, DType dtype) {
#ifdef __CUDA_ARCH__
  if (!isfinite(s)) return s;
  if (dtype == DType::f16) {
    const float a = fminf(fmaxf(fabsf(s), 6.103515625e-05f), 65504.f);
    return copysignf(round_to_f16(a), s);
  }
  const float a = fmaxf(fabsf(s), 1.17549435e-38f);
  return copysignf(dtype == DType::bf16 ? round_to_bf16(a) : a, s);
#else
  return representable_scale(s, dtype);
#endif
}

// The errors of a search are added in f32 over runs of so many weights, and the runs in f64.
inline constexpr int64_t kSearchRun = 128;

}  // namespace fewbit
