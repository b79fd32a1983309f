#pragma once
// RowCutter: rows that arrive in portions of any size leave in pieces of one size, counted from the first row. So the
// sums over them do not depend on the portions.
#include <functional>

#include "kernels/exec/exec.h"

namespace fewbit {

class RowCutter {
 public:
  // Gets pieces of the rows of both streams; x_full.data == nullptr where there is one only.
  using Take = std::function<void(ConstTensorView x, ConstTensorView x_full)>;
  // `piece`: rows; 0: gram_chunk(), as many as the sums of statistics take at once.
  RowCutter(Exec& ex, int64_t piece, Take take);

  void add(ConstTensorView x, ConstTensorView x_full);
  // The rows that are left, fewer than a piece.
  void finish();

 private:
  void keep(ConstTensorView x, ConstTensorView x_full);

  Exec& ex_;
  int64_t piece_;
  Take take_;
  Tensor x_{}, x_full_{};  // [piece_, features] each, made when a portion does not end with a piece
  int64_t kept_ = 0;       // rows in them
};

}  // namespace fewbit
