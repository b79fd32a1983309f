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

void dequantize(Exec&, const CodedView& q, TensorView w) {
  const int64_t out = q.codes.rows(), in = q.codes.cols(), groups = q.scales.cols();
  FEWBIT_ASSERT(w.rows() == out && w.cols() == in && q.scales.rows() == (out + q.out_group - 1) / q.out_group &&
                q.group > 0);
  FEWBIT_ASSERT(w.dtype == DType::f32 || w.dtype == DType::bf16);
  const int mid = 1 << (q.bits - 1);
  const int32_t* group_of = q.group_of.data ? q.group_of.as<int32_t>() : nullptr;
  const float* levels = q.levels.data ? q.levels.as<float>() : nullptr;
  const uint8_t* zeros = q.zeros.data ? q.zeros.as<uint8_t>() : nullptr;
  parallel_for(out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < in; ++i) {
        const int64_t g = group_of ? group_of[i] : i / q.group;
        const int code = q.codes.as<uint8_t>()[o * in + i];
        const float level = levels ? levels[code] : static_cast<float>(code - (zeros ? zeros[o * groups + g] : mid));
        const float value = level * q.scales.as<float>()[o / q.out_group * groups + g];
        if (w.dtype == DType::f32)
          w.as<float>()[o * in + i] = value;
        else
          w.as<bf16>()[o * in + i] = value;
      }
  });
}

}  // namespace cpu
}  // namespace fewbit
