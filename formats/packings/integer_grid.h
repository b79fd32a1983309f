#pragma once
// What the packings of plain integer grids with f16 scales share: refusals of other grids, and scales that
// lie [groups, outputs] in the file. Internal to formats/packings.
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

// Error{checkpoint} naming `tensor` unless every zero point [out, G] u8 is that of the symmetric grid.
void expect_symmetric(const Tensor& zeros, const QuantSpec& spec, const std::string& tensor);

}  // namespace fewbit::integer_grid
