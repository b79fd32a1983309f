// 4-bit floats: the CPU half.
#include "kernels/grids/fp4_grid.h"
#include "kernels/quantize/round_fp4.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void round_fp4(Exec&, const Fp4Rounding& a, TensorView codes, TensorView scales) {
  const int64_t out = a.w.rows(), in = a.w.cols(), groups = in / a.group;
  FEWBIT_ASSERT(in % a.group == 0 && scales.rows() == out && scales.cols() == groups);
  FEWBIT_ASSERT(codes.rows() == out && codes.cols() == in);
  const float* h = a.h.data ? a.h.as<float>() : nullptr;
  parallel_for(out, 4, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t k = 0; k < groups; ++k) {
        const Fp4Group g{a.w.as<float>() + o * in + k * a.group, h ? h + k * a.group : nullptr,
                         static_cast<int>(a.group)};
        const float s = scale_value(choose_fp4_scale(g, a.scale_dtype, a.global, a.search), a.scale_dtype);
        scales.as<float>()[o * groups + k] = s;
        for (int64_t i = 0; i < a.group; ++i)
          codes.as<uint8_t>()[o * in + k * a.group + i] = e2m1_code(g.w[i] / mul_rn(s, a.global));
      }
  });
}

}  // namespace fewbit::cpu
