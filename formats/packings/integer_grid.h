#pragma once
// What the packings of plain integer grids with f16 scales share: refusals of other grids, and scales that
// lie [groups, outputs] in the file. Internal to formats/packings.
#include <optional>
#include <string>

#include "formats/packing.h"

namespace fewbit::integer_grid {

// Why a packing of integers with f16 scales cannot take this at all; "" = it can, as far as this goes.
std::string refuses(const QuantSpec& spec, int64_t out, int64_t in);
// "" unless the bits are 5, 6 or 7, which no reader but ours knows: for packings that others read.
std::string refuses_odd_bits(const QuantSpec& spec);

// Scales of the neutral form [out, G] f32 to a file's F16 [G, out]; the scale of output n stands in column
// column(n). And back: Error{checkpoint} naming `tensor` for a scale that is not finite.
Tensor scales_to_file(const Tensor& scales, int64_t (*column)(int64_t n));
Tensor scales_from_file(ConstTensorView file, const std::string& tensor, int64_t (*column)(int64_t n));

// Zero points [out, G] u8 as the neutral form has them: none where the spec is symmetric, and then Error{checkpoint}
// naming `tensor` unless every one is that of the symmetric grid.
std::optional<Tensor> zeros_from_file(Tensor zeros, const QuantSpec& spec, const std::string& tensor);

// group_of from a file's I32 [in], or nothing when the groups are consecutive. Error{checkpoint} naming `tensor` for a
// group that there is none of.
std::optional<Tensor> groups_from_file(ConstTensorView file, const QuantSpec& spec, const std::string& tensor);

}  // namespace fewbit::integer_grid
