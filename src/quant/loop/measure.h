#pragma once
// Measures what a quantized linear lost, for its record, and the scales that an FP8 cache needs.
#include <optional>

#include "formats/kv_scales.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "src/calib/input_stats.h"
#include "src/quant/output/report.h"
#include "src/quant/row_share.h"

namespace fewbit {

// rel_error and sqnr_db of the record, for the weight w and the values that took its place, both [out, in]
// f32 on ex's device: relative error of the output on the calibration data (of the weights where there is
// none) and SQNR. Where the linear rounds its input, on the sample of the statistics, run both ways. Ranks that have
// all of w and the values measure their rows. `loss`: that of these values under the Gram matrix, for each token, where
// the method has measured it.
void measure(Exec&, const Tensor& w, const Tensor& values, const std::optional<RowQuant>& rounding,
             const InputStats* stats, LinearRecord& record, const RowShare& rows = RowShare::none(),
             std::optional<double> loss = {});
// The same for codes, which need not be in host memory where the device has them (`there`).
void measure(Exec&, const Tensor& w, const QuantizedLinear& codes, const DeviceCodes& there, const InputStats* stats,
             LinearRecord& record, const RowShare& rows = RowShare::none(), std::optional<double> loss = {});

// Scales of an FP8 cache: the largest key (after RoPE) and the largest value of all that were added, [tokens, features]
// each, become the largest code of E4M3.
class KvRange {
 public:
  void add(Exec&, ConstTensorView keys, ConstTensorView values);
  KvScales scales(Exec&, const Ranks&) const;  // collective: those of what all ranks were shown

 private:
  struct Largest {
    Tensor absmax{}, abssum{};
    void add(Exec&, ConstTensorView x);
    float value(Exec&, const Ranks&) const;
  };
  Largest keys_{}, values_{};
};

}  // namespace fewbit
