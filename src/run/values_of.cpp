#include "src/run/values_of.h"

#include "kernels/model/cast.h"
#include "kernels/model/hadamard.h"
#include "kernels/products/dequantize.h"

namespace fewbit {

Tensor levels_of(Exec& ex, Grid grid) { return grid == Grid::integer ? Tensor() : ex.to_device(code_levels(grid)); }

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
