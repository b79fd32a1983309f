#pragma once
// Packings: the bytes of one quantized linear, both directions. Nibble order, zero offsets and permutations
// live in the packing's own file and nowhere else.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/quantized_linear.h"

namespace fewbit {

struct NamedTensor {
  std::string name;  // full name in the checkpoint: "<linear>.<suffix>"
  Tensor tensor;
};
struct PackedLinear {
  std::vector<NamedTensor> tensors;
};
// Full tensor name -> bytes in host memory; data == nullptr when absent.
using TensorSource = std::function<ConstTensorView(const std::string& name)>;

// One tensor a packing would write: for the plan's prediction and the reader's shape check.
struct TensorPlan {
  struct Form {
    DType dtype;
    Shape shape;
  };
  std::string suffix;
  DType dtype;
  Shape shape;
  std::vector<Form> also_read{};  // forms that other writers give this tensor and unpack() takes as well
  int64_t bytes() const { return shape.numel() * bytes_of(dtype); }
  bool takes(const ConstTensorView& found) const;  // dtype and shape as written, or one of also_read
};

struct Packing {
  std::string_view name, summary;
  // "" = accepts; else the reason, with the numbers, in words for a user. `act_order` = group_of is present.
  std::string (*refuses)(const QuantSpec&, int64_t out, int64_t in, bool act_order);
  std::vector<TensorPlan> (*tensors)(const QuantSpec&, int64_t out, int64_t in, bool act_order);
  PackedLinear (*pack)(std::string_view linear, const QuantizedLinear&);  // null: refuses everything, is only read
  // Error{checkpoint} naming the tensor where one is missing or has the wrong dtype or shape.
  QuantizedLinear (*unpack)(std::string_view linear, const QuantSpec&, int64_t out, int64_t in, const TensorSource&);
  // What a plan says of a linear that will lie so: readers that will not take it; "" = nothing. Absent: never anything.
  std::string (*note)(const QuantSpec&, int64_t out, int64_t in) = nullptr;
  bool two_of_four = false;  // pack() takes linears alone that two_of_four(), and stops the process at others
};

const std::vector<const Packing*>& packings();
const Packing& packing(std::string_view name);  // Error{usage} listing the known ones
int64_t packed_bytes(const Packing&, const QuantSpec&, int64_t out, int64_t in, bool act_order);

// Shared by unpack(): fetches "<linear>.<plan.suffix>" and checks dtype and shape. Error{checkpoint}
// otherwise.
ConstTensorView expect_tensor(const TensorSource&, std::string_view linear, const TensorPlan&);

#define FEWBIT_PACKING(id) extern const Packing packing_##id;
#include "formats/packings.def"
#undef FEWBIT_PACKING

}  // namespace fewbit
