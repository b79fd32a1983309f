#pragma once
// CoupledCodes: the codes of a linear whose rows are coded in steps (coupled_rows.h), in the order of the walk.
#include "src/quant/method.h"

namespace fewbit {

class CoupledCodes {
 public:
  CoupledCodes(Exec&, const QuantSpec&, int64_t out, int64_t in);

  // Takes the codes of a step's rows, of which the first is row `first` in the order of the walk.
  void put(Exec&, const DeviceCodes& some, int64_t first);
  // The codes of `rows` of them, which are there.
  DeviceCodes get(Exec&, int64_t first, int64_t rows) const;
  // All of them in the order of the linear; place: i32 [out], CoupledRows::place().
  DeviceCodes in_rows(Exec&, const Tensor& place) const;

 private:
  DeviceCodes walked_;
};

}  // namespace fewbit
