#include "src/run/values_of.h"

#include "kernels/model/cast.h"
#include "kernels/model/hadamard.h"
#include "kernels/products/dequantize.h"
#include "src/core/parallel.h"

namespace fewbit {

Tensor levels_of(Exec& ex, Grid grid) { return grid == Grid::integer ? Tensor() : ex.to_device(code_levels(grid)); }

Tensor nibbles_of(const QuantizedLinear& q) {
  const int64_t in = q.in(), bytes = (in + 1) / 2;
  Tensor packed = Tensor::host(DType::u8, {q.out(), bytes});
  constexpr int64_t kRows = 16;  // tens of KiB
  parallel_for(q.out(), kRows, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const uint8_t* from = q.codes.as<uint8_t>() + o * in;
      uint8_t* to = packed.as<uint8_t>() + o * bytes;
      for (int64_t i = 0; i < in / 2; ++i) to[i] = static_cast<uint8_t>(from[2 * i] | from[2 * i + 1] << 4);
      if (in % 2 == 1) to[bytes - 1] = from[in - 1];
    }
  });
  return packed;
}

Tensor values_of(Exec& ex, const QuantizedLinear& q, DType dtype) {
  Tensor effective = clone_host(q.scales);
  for (int64_t i = 0; i < effective.numel(); ++i)
    effective.as<float>()[i] = static_cast<float>(effective.as<float>()[i] * q.global_scale.value_or(1.0));
  const Tensor codes = ex.to_device(q.codes), scales = ex.to_device(effective);
  const Tensor zeros = q.zeros ? ex.to_device(*q.zeros) : Tensor();
  const Tensor group_of = q.group_of ? ex.to_device(*q.group_of) : Tensor();
  const Tensor levels = levels_of(ex, q.spec.grid);
  Tensor w = ex.alloc(q.spec.turn ? DType::f32 : dtype, {q.out(), q.in()});
  dequantize(ex,
             {.codes = codes,
              .scales = scales,
              .zeros = zeros,
              .group_of = group_of,
              .levels = levels,
              .grid = q.spec.grid,
              .bits = q.spec.bits,
              .group = q.spec.group_size(q.in()),
              .out_group = q.spec.out_group},
             w);
  if (q.spec.turn == 0) return w;
  hadamard(ex, w, w.view().row_range(0, 0), q.spec.turn);
  if (dtype == DType::f32) return w;
  Tensor narrow = ex.alloc(dtype, w.shape());
  cast(ex, w, narrow);
  return narrow;
}

}  // namespace fewbit
