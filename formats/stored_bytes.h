#pragma once
// Weights of one byte a value that lie in the file as a device multiplies them: read without a copy.
#include <optional>

#include "formats/packing.h"

namespace fewbit {

struct StoredBytes {
  ConstTensorView codes{};  // [out, in] i8 | f8_e4m3, in the file's own memory
  Tensor scales{};          // f32 [ceil(out / out_group), 1]
  std::optional<double> input_scale{};
};
// Nothing where the packing does not store such bytes; errors as in Packing::unpack.
std::optional<StoredBytes> stored_bytes(const Packing&, std::string_view linear, const QuantSpec&, int64_t out,
                                        int64_t in, const TensorSource&);

}  // namespace fewbit
