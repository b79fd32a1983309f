#pragma once
// What the searches of transforms share: one value per feature of an absorber, the linears behind it, the least loss.
#include <functional>

#include "src/quant/transform.h"

namespace fewbit {

using Features = std::vector<float>;  // one value per feature of an absorber, or per input feature of its consumers

inline constexpr int64_t kJudgedRows = 128;  // of each consumer, in a search

Tensor uploaded(Exec&, const Features&);
Features inverse_of(const Features&);

// Calls f with the target and the weight [out, in] f32 of every linear behind the absorber.
void for_consumers(const TransformJob&, const BlockF32&, const Absorber&,
                   const std::function<void(const LinearTarget&, ConstTensorView weight)>& f);

// The candidate with the least loss; none where nothing beats leaving the block as it is.
class LeastLoss {
 public:
  explicit LeastLoss(double untouched) : least_(untouched) {}
  // True where `s` is better than everything before.
  bool take(Features s, double loss) {
    if (!(loss < least_)) return false;
    least_ = loss;
    best_ = std::move(s);
    return true;
  }
  const Features& best() const { return best_; }  // empty: none

 private:
  double least_;
  Features best_{};
};

}  // namespace fewbit
