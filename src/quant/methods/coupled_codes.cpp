#include "src/quant/methods/coupled_codes.h"

#include "kernels/quantize/matrix_edit.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

// Tensors of codes that have a row for each of the linear's.
constexpr Tensor DeviceCodes::*kByRow[] = {&DeviceCodes::codes, &DeviceCodes::scales, &DeviceCodes::zeros};

Tensor copy_of(Exec& ex, ConstTensorView t) {
  Tensor c = ex.alloc(t.dtype, t.shape);
  ex.copy(t, c);
  return c;
}

}  // namespace

CoupledCodes::CoupledCodes(Exec& ex, const QuantSpec& spec, int64_t out, int64_t in)
    : walked_(make_codes(ex, spec, out, in)) {}

void CoupledCodes::put(Exec& ex, const DeviceCodes& some, int64_t first) {
  for (const auto member : kByRow)
    if (const Tensor& t = some.*member) ex.copy(t, (walked_.*member).view().row_range(first, first + t.rows()));
  if (some.group_of) walked_.group_of = copy_of(ex, some.group_of);
}

DeviceCodes CoupledCodes::get(Exec& ex, int64_t first, int64_t rows) const {
  DeviceCodes some;
  for (const auto member : kByRow)
    if (const Tensor& t = walked_.*member) some.*member = copy_of(ex, t.view().row_range(first, first + rows));
  if (walked_.group_of) some.group_of = copy_of(ex, walked_.group_of);
  return some;
}

DeviceCodes CoupledCodes::in_rows(Exec& ex, const Tensor& place) const {
  DeviceCodes all;
  for (const auto member : kByRow)
    if (const Tensor& t = walked_.*member) {
      all.*member = ex.alloc(t.dtype(), t.shape());
      permute(ex, t, place, {}, all.*member);
    }
  if (walked_.group_of) all.group_of = copy_of(ex, walked_.group_of);
  return all;
}

}  // namespace fewbit
