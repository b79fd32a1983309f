// E2M1 codes in blocks to values: the CPU half.
#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/grids/fp4_grid.h"
#include "kernels/products/fp4_values.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {

std::optional<Tensor> fp4_scale_codes(const Tensor& scales) {
  Tensor codes = Tensor::host(DType::u8, scales.shape());
  std::atomic<bool> all{true};
  parallel_for(scales.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    uint32_t most = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t code = std::bit_cast<uint32_t>(scales.as<float>()[i]) >> 23;  // 2^-127, subnormal, is code 0
      codes.as<uint8_t>()[i] = static_cast<uint8_t>(code);
      most = std::max(most, code);
    }
    if (most > kMostFp4Scale) all = false;
  });
  if (!all) return std::nullopt;
  return codes;
}

namespace cpu {

void fp4_values(Exec&, const Fp4View& q, TensorView w) {
  const int64_t in = q.in(), blocks = in / kFp4Block;
  parallel_for(q.out(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const uint32_t* words = q.words.as<uint32_t>() + o * in / kFp4WordCodes;
      const uint8_t* scales = q.scales.as<uint8_t>() + o * blocks;
      bf16* to = w.as<bf16>() + o * in;
      for (int64_t i = 0; i < in; ++i) {
        const uint8_t code = fp4_code(words[i / kFp4WordCodes], static_cast<int>(i % kFp4WordCodes));
        to[i] = e2m1_value(code) * scale_value(scales[i / kFp4Block], DType::f8_e8m0);
      }
    }
  });
}

}  // namespace cpu
}  // namespace fewbit
