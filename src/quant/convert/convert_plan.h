#pragma once
// The plan of a conversion: what it will write, found out before anything is written. Internal to src/quant.
#include <map>

#include "src/quant/convert/convert.h"

namespace fewbit {

struct ConvertPlan {
  QuantizationSummary summary{};                // of the checkpoint to be written
  std::map<std::string, std::string> hashes{};  // of its packed linears, as `evaluate verify` finds them
  std::vector<std::string> notes{};
};

// Error{unsupported} with every linear that the format cannot hold, grouped by reason.
ConvertPlan plan_conversion(const Checkpoint&, const ConvertJob&);

// Error{stopped} where the user asked for it.
void convert_step(const ConvertJob&, const char* phase, size_t done, size_t total);

// Which tensors of a checkpoint are not copied: those of packed linears, and the scales of its FP8 cache.
class Replaced {
 public:
  explicit Replaced(const Checkpoint& from);
  bool has(const std::string& tensor) const;

 private:
  const Checkpoint& from_;
  std::vector<std::string> kv_;
};

// A host tensor of floats in another float type.
Tensor float_tensor(ConstTensorView, DType);

}  // namespace fewbit
