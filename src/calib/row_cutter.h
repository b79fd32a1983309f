#pragma once
// RowCutter: rows that arrive in portions of any size leave in pieces of one size, counted from the first row. So the
// sums over them do not depend on the portions.
#include <functional>

#include "kernels/exec/exec.h"
#include "src/calib/input_stats.h"

namespace fewbit {

class RowCutter {
 public:
  using Take = std::function<void(const InputRows& piece)>;
  // `piece`: rows; 0: gram_chunk(), as many as the sums of statistics take at once.
  RowCutter(Exec& ex, int64_t piece, Take take);

  void add(const InputRows&);
  // The rows that are left, fewer than a piece.
  void finish();

 private:
  void keep(const InputRows&);

  Exec& ex_;
  int64_t piece_;
  Take take_;
  Tensor x_{}, full_{}, error_{};  // [piece_, features] each, made when a portion does not end with a piece
  int64_t kept_ = 0;               // rows in them
};

}  // namespace fewbit
