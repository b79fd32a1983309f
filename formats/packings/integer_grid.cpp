#include "formats/packings/integer_grid.h"

#include <cmath>

#include "formats/bits.h"
#include "src/core/half.h"

namespace fewbit::integer_grid {

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in) {
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  if (spec.grid != Grid::integer) return "it holds integer grids only, not " + spec.str();
  if (spec.activations != ActQuant::none) return "it is for weight-only linears, not " + spec.str();
  if (spec.bits < 2 || spec.bits > 8) return "it holds 2 to 8 bits, not " + std::to_string(spec.bits);
  if (spec.group != -1 && spec.group < 1)
    return "the group size must be -1 or positive, not " + std::to_string(spec.group);
  if (spec.scale_dtype != DType::f16) return "its scales are f16, not " + std::string(name_of(spec.scale_dtype));
  if (spec.out_group != 1)
    return "it has a scale for every output, not one for " + std::to_string(spec.out_group) + " outputs";
  return "";
}

std::string refuses_odd_bits(const QuantSpec& spec) {
  if (spec.bits < 5 || spec.bits > 7) return "";
  return "its readers know 2, 3, 4 and 8 bits, not " + std::to_string(spec.bits) + "; gptq_v2 words hold them";
}

Tensor scales_to_file(const Tensor& scales, int64_t (*column)(int64_t n)) {
  const int64_t out = scales.shape()[0], groups = scales.shape()[1];
  Tensor file = Tensor::host(DType::f16, {groups, out});
  for (int64_t n = 0; n < out; ++n)
    for (int64_t g = 0; g < groups; ++g) file.as<f16>()[g * out + column(n)] = scales.as<float>()[n * groups + g];
  return file;
}

Tensor scales_from_file(ConstTensorView file, const std::string& tensor, int64_t (*column)(int64_t n)) {
  const int64_t groups = file.shape[0], out = file.shape[1];
  Tensor scales = Tensor::host(DType::f32, {out, groups});
  for (int64_t n = 0; n < out; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      const float s = f16_to_f32(bits::load<uint16_t>(file.data, g * out + column(n)));
      if (!std::isfinite(s)) {
        fail(ErrorKind::checkpoint, "tensor '" + tensor + "': expected finite scales, found " + std::to_string(s) +
                                        " in row " + std::to_string(g) + ", column " + std::to_string(column(n)));
      }
      scales.as<float>()[n * groups + g] = s;
    }
  return scales;
}

std::optional<Tensor> zeros_from_file(Tensor zeros, const QuantSpec& spec, const std::string& tensor) {
  if (!spec.symmetric) return zeros;
  for (int64_t i = 0; i < zeros.numel(); ++i) {
    const int zero = zeros.as<uint8_t>()[i];
    if (zero == spec.mid_code()) continue;
    fail(ErrorKind::checkpoint, "tensor '" + tensor + "': expected zero point " + std::to_string(spec.mid_code()) +
                                    " everywhere (sym is true), found " + std::to_string(zero) + " at output " +
                                    std::to_string(i / zeros.shape()[1]));
  }
  return std::nullopt;
}

std::optional<Tensor> groups_from_file(ConstTensorView file, const QuantSpec& spec, const std::string& tensor) {
  const int64_t in = file.shape[0], groups = spec.groups(in), size = spec.group_size(in);
  Tensor group_of = Tensor::host(DType::i32, {in});
  bool consecutive = true;
  for (int64_t k = 0; k < in; ++k) {
    const int32_t g = bits::load<int32_t>(file.data, k);
    if (g < 0 || g >= groups)
      fail(ErrorKind::checkpoint, "tensor '" + tensor + "': expected groups 0 to " + std::to_string(groups - 1) +
                                      ", found " + std::to_string(g) + " at input " + std::to_string(k));
    group_of.as<int32_t>()[k] = g;
    consecutive = consecutive && g == k / size;
  }
  if (consecutive) return std::nullopt;
  return group_of;
}

}  // namespace fewbit::integer_grid
