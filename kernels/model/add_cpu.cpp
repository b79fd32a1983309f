// The residual sum: the CPU half.
#include "kernels/model/add.h"

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void add(Exec&, ConstTensorView h, TensorView x, float factor) {
  FEWBIT_ASSERT(h.numel() == x.numel() && h.dtype == x.dtype);
  constexpr int64_t kGrain = 16384;
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
      float a[kGrain], b[kGrain];
      widen(h.as<T>() + begin, a, end - begin);
      widen(x.as<T>() + begin, b, end - begin);
      axpy(factor, a, b, end - begin);
      narrow(b, x.as<T>() + begin, end - begin);
    });
  });
}

void scale_by(Exec&, ConstTensorView factor, TensorView x) {
  const int64_t factors = factor.numel();
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.numel(), 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float scaled = factor.as<float>()[i % factors] * static_cast<float>(x.as<T>()[i]);
        narrow(&scaled, x.as<T>() + i, 1);
      }
    });
  });
}

}  // namespace fewbit::cpu
