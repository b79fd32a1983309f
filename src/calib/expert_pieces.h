#pragma once
// ExpertPieces: the rows of a mixture's experts in pieces of kExpertPiece, counted from each expert's first row, so
// that sums over them depend neither on the chunks in which the rows come nor on which experts are looked at together.
#include <functional>
#include <vector>

#include "kernels/products/expert_rows.h"
#include "src/run/moe.h"

namespace fewbit {

// Rows of a piece: those of all experts that are looked at are in memory at once.
inline constexpr int64_t kExpertPiece = 2048;

class ExpertPieces {
 public:
  // Gets pieces of an expert's rows in both streams; x_full.data == nullptr where there is one only. They stay until it
  // returns, in the order of the Exec.
  using Take = std::function<void(int expert, ConstTensorView x, ConstTensorView x_full)>;

  ExpertPieces(Exec&, std::vector<int> experts, Take take);
  // The rows that the experts have of a chunk x, x_full [tokens, features].
  void add(const Routing&, ConstTensorView x, ConstTensorView x_full);
  // The rows that are left, fewer than a piece of each.
  void finish();

 private:
  void place(const Routing&, const std::vector<size_t>& of, const std::vector<PlacedRows>& runs, ConstTensorView x,
             Tensor& to) const;
  void give(size_t i);

  Exec& ex_;
  std::vector<int> experts_;
  Take take_;
  std::vector<int64_t> kept_;  // rows that wait, by expert of experts_
  Tensor x_{}, x_full_{};      // [experts_ * kExpertPiece, features] each
};

}  // namespace fewbit
