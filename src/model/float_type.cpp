#include "src/model/float_type.h"

#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {

Tensor in_float_type(const Tensor& f32, DType type) {
  Tensor out = Tensor::host(type, f32.shape());
  parallel_for(f32.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float x = f32.as<float>()[i];
      if (type == DType::bf16)
        out.as<bf16>()[i] = x;
      else if (type == DType::f16)
        out.as<f16>()[i] = x;
      else
        out.as<float>()[i] = x;
    }
  });
  return out;
}

}  // namespace fewbit
