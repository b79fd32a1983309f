#pragma once
// The share of a linear's weight [out, in] that one of several ranks has, and how it is cut out of what a checkpoint
// stores.
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/quantized_linear.h"

namespace fewbit {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Rows of the weight are outputs, columns inputs. A share has all of one of the two.
struct LinearShare {
  std::vector<Range> rows{};  // in the order that the outputs have on the rank
  Range columns{};
  bool bias = true;  // false: another rank adds it
  int64_t out() const;
  int64_t in() const { return columns.size(); }
};
LinearShare whole_share(int64_t out, int64_t in);

// Those rows and columns of a host tensor [out, in] at any address, or those entries of one [out], in its dtype. Of a
// mapped file only they are read.
Tensor cut(ConstTensorView host, const LinearShare&);
// The same of a neutral form, with the scales that belong to them. share_refusal() must have nothing to say.
QuantizedLinear cut(const QuantizedLinear&, const LinearShare&);
// Why a linear with this spec cannot be cut so: a scale would have to be in two places, or (act_order) the scales of
// the columns are not side by side. "" = it can.
std::string share_refusal(const QuantSpec&, bool act_order, int64_t out, int64_t in, const LinearShare&);

}  // namespace fewbit
