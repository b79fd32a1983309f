// Codes to values: the CPU half.
#include "kernels/products/dequantize.h"

#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {

Tensor code_levels(Grid grid) {
  FEWBIT_ASSERT(grid != Grid::integer);
  Tensor levels = Tensor::host(DType::f32, {256});
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    levels.as<float>()[c] = grid == Grid::f8_e4m3 ? f8_e4m3_to_f32(code) : f4_e2m1_to_f32(code & 15);
  }
  return levels;
}

namespace cpu {

void dequantize(Exec&, const CodedView& view, TensorView w) {
  const CodedArrays<false> q(view);
  FEWBIT_ASSERT(w.dtype == DType::f32 || w.dtype == DType::bf16);
  parallel_for(q.out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int i = 0; i < q.in; ++i) {
        const float value = q.value(o, i);
        if (w.dtype == DType::f32)
          w.as<float>()[q.index(o, i)] = value;
        else
          w.as<bf16>()[q.index(o, i)] = value;
      }
  });
}

}  // namespace cpu
}  // namespace fewbit
