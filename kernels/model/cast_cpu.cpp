// Conversion between float types: the CPU half.
#include "kernels/model/cast.h"

#include <cstring>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements; fits the stack as f32

void to_floats(ConstTensorView x, int64_t begin, int64_t n, float* out) {
  switch (x.dtype) {
    case DType::f32:
      return widen(x.as<float>() + begin, out, n);
    case DType::bf16:
      return widen(x.as<bf16>() + begin, out, n);
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) out[i] = x.as<f16>()[begin + i];
      return;
    case DType::f8_e4m3:
      for (int64_t i = 0; i < n; ++i) out[i] = f8_e4m3_to_f32(x.as<uint8_t>()[begin + i]);
      return;
    case DType::f8_e5m2:
      for (int64_t i = 0; i < n; ++i) out[i] = f8_e5m2_to_f32(x.as<uint8_t>()[begin + i]);
      return;
    default:
      bug("cast: source dtype");
  }
}

void from_floats(const float* x, TensorView y, int64_t begin, int64_t n) {
  switch (y.dtype) {
    case DType::f32:
      return narrow(x, y.as<float>() + begin, n);
    case DType::bf16:
      return narrow(x, y.as<bf16>() + begin, n);
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) y.as<f16>()[begin + i] = x[i];
      return;
    case DType::f8_e4m3:
      for (int64_t i = 0; i < n; ++i) y.as<uint8_t>()[begin + i] = f32_to_f8_e4m3_saturated(x[i]);
      return;
    default:
      bug("cast: destination dtype");
  }
}

}  // namespace

void cast(Exec&, ConstTensorView x, TensorView y) {
  FEWBIT_ASSERT(x.numel() == y.numel());
  if (x.dtype == y.dtype) {
    if (x.bytes() > 0) std::memmove(y.data, x.data, static_cast<size_t>(x.bytes()));
    return;
  }
  parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    float values[kGrain];
    to_floats(x, begin, end - begin, values);
    from_floats(values, y, begin, end - begin);
  });
}

}  // namespace fewbit::cpu
