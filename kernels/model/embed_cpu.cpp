// Rows of the embedding table, scaled: the CPU half.
#include "kernels/model/embed.h"

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

float element(ConstTensorView table, int64_t i) {
  switch (table.dtype) {
    case DType::f32:
      return table.as<float>()[i];
    case DType::f16:
      return table.as<f16>()[i];
    case DType::bf16:
      return table.as<bf16>()[i];
    default:
      bug("embed: table dtype");
  }
}

}  // namespace

void embed(Exec&, ConstTensorView ids, ConstTensorView table, float scale, TensorView x) {
  FEWBIT_ASSERT(ids.dtype == DType::i32 && x.rows() == ids.numel() && x.cols() == table.cols());
  const int64_t hidden = table.cols();
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(ids.numel(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t id = ids.as<int32_t>()[t];
        FEWBIT_ASSERT(id >= 0 && id < table.rows());
        T* row = x.as<T>() + t * hidden;
        for (int64_t c = 0; c < hidden; ++c) row[c] = element(table, id * hidden + c) * scale;
      }
    });
  });
}

}  // namespace fewbit::cpu
