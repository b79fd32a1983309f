#pragma once
// What the searches of transforms share: one value per feature of an absorber, the linears behind it, the least loss.
#include <algorithm>
#include <functional>

#include "src/quant/transform.h"

namespace fewbit {

using Features = std::vector<float>;  // one value per feature of an absorber, or per input feature of its consumers

// Rows of each linear behind an absorber that a search judges: fewer each where there are many experts.
inline int64_t judged_rows(const Absorber& a) {
  return std::clamp(int64_t{4096} / static_cast<int64_t>(a.linears.size()), int64_t{16}, int64_t{128});
}

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
