#pragma once
// Arithmetic of an integer grid in one text for the CPU and CUDA halves, so that both choose the same codes for the
// same weights. Nothing in here is contracted to a fused multiply-add, on either side: the GPU's mul_rn() and add_rn()
// are intrinsics, and CPU files whose loops choose codes in clones with FMA are compiled without contraction
// (CMakeLists.txt).
#include <cmath>
#include <cstdint>

#include "src/core/half.h"
#include "src/core/host_device.h"
#include "src/core/quantized_linear.h"

namespace fewbit {

// a * b and a + b in f32, each rounded to nearest even by itself.
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

// The nearest integer, ties to even, for |x| < 2^22: next to 1.5 * 2^23 an f32 has no bits for a fraction. Plain
// additions, so that the compiler can vectorise them.
FEWBIT_HD float round_even(float x) { return add_rn(add_rn(x, 12582912.f), -12582912.f); }
FEWBIT_HD float clamp_to(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

// The level (code - zero) nearest to w on a grid with codes 0 to max_code. The bounds are whole numbers, so clamping
// may come before rounding.
FEWBIT_HD float grid_level(float w, float scale, int zero, int max_code) {
  return round_even(clamp_to(w / scale, static_cast<float>(-zero), static_cast<float>(max_code - zero)));
}

// representable_scale() of src/core/quantized_linear.h on both sides: s rounded to f16 or bf16 (f32: as it is), its
// magnitude kept within the normal range.
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

// A search adds errors in f32 over runs of so many weights, and the runs in f64.
inline constexpr int64_t kSearchRun = 128;

}  // namespace fewbit
