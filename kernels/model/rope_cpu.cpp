// Rotary position embedding: the CPU half. One table of sines per token, used by all its heads.
#include "kernels/model/rope.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void rope(Exec&, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
          float attention_scale, RopePairs pairs) {
  const int64_t tokens = x.rows(), half = inv_freq.numel(), heads = x.cols() / head_dim;
  FEWBIT_ASSERT(positions.numel() == tokens && positions.dtype == DType::i32 && inv_freq.dtype == DType::f32);
  FEWBIT_ASSERT(2 * half <= head_dim && heads * head_dim == x.cols());
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(tokens, 32, [&](int64_t begin, int64_t end) {
      std::vector<float> cosines(static_cast<size_t>(half)), sines(static_cast<size_t>(half));
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const float angle = static_cast<float>(positions.as<int32_t>()[t]) * inv_freq.as<float>()[i];
          cosines[static_cast<size_t>(i)] = std::cos(angle) * attention_scale;
          sines[static_cast<size_t>(i)] = std::sin(angle) * attention_scale;
        }
        for (int64_t h = 0; h < heads; ++h) {
          T* head = x.as<T>() + (t * heads + h) * head_dim;
          for (int64_t i = 0; i < half; ++i) {
            const int64_t first = pairs == RopePairs::halves ? i : 2 * i,
                          second = pairs == RopePairs::halves ? i + half : 2 * i + 1;
            const float u = head[first], v = head[second];
            const float c = cosines[static_cast<size_t>(i)], s = sines[static_cast<size_t>(i)];
            head[first] = u * c - v * s;
            head[second] = v * c + u * s;
          }
        }
      }
    });
  });
}

void scale_by_position(Exec&, TensorView x, ConstTensorView positions, float factor, int64_t every, int64_t shift) {
  const int64_t cols = x.cols();
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.rows(), 32, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t steps = (positions.as<int32_t>()[t] + shift) / every;
        const float by = 1 + factor * std::log1p(static_cast<float>(steps));
        for (T* v = x.as<T>() + t * cols; v < x.as<T>() + (t + 1) * cols; ++v) *v = static_cast<float>(*v) * by;
      }
    });
  });
}

}  // namespace fewbit::cpu
