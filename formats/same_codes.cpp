#include "formats/same_codes.h"

#include <algorithm>

#include "formats/two_of_four.h"
#include "src/core/error.h"
#include "src/core/half.h"

namespace fewbit {
namespace {

bool holds(DType type, float scale) {
  return type == DType::f32 || (type == DType::f16 ? round_to_f16(scale) : round_to_bf16(scale)) == scale;
}

bool scales_fit(const QuantizedLinear& q, DType type) {
  const float* s = q.scales.as<float>();
  return std::all_of(s, s + q.scales.numel(), [&](float v) { return holds(type, v); });
}

bool zeros_in_the_middle(const QuantizedLinear& q) {
  if (!q.zeros) return false;
  const uint8_t* z = q.zeros->as<uint8_t>();
  return std::all_of(z, z + q.zeros->numel(), [&](uint8_t v) { return v == q.spec.mid_code(); });
}

// Other types that a scale may be stored in. Those of 4-bit floats have none.
std::vector<DType> types_of_scales(const QuantizedLinear& q) {
  std::vector<DType> types = {q.spec.scale_dtype};
  if (q.spec.grid == Grid::f4_e2m1) return types;
  for (const DType t : {DType::f16, DType::bf16, DType::f32})
    if (t != q.spec.scale_dtype && scales_fit(q, t)) types.push_back(t);
  return types;
}

// Grids on which `q` has the same codes and values, as it is first.
std::vector<QuantSpec> grids_of(const QuantizedLinear& q) {
  std::vector<QuantSpec> grids;
  std::vector<bool> symmetries = {q.spec.symmetric};
  std::vector<int64_t> groups = {q.spec.group};
  if (zeros_in_the_middle(q)) symmetries.push_back(true);
  if (q.spec.group == -1) groups.push_back(q.in());
  if (q.spec.group == q.in()) groups.push_back(-1);
  const std::vector<DType> types = types_of_scales(q);
  for (const bool symmetric : symmetries)
    for (const int64_t group : groups)
      for (const DType type : types) {
        QuantSpec s = q.spec;
        s.symmetric = symmetric;
        s.group = group;
        s.scale_dtype = type;
        grids.push_back(s);
      }
  return grids;
}

// What a packing may store rounded, or as another number: multipliers as f32 or one over it, and GGUF's
// minima in the place of zero points. "" where `q` comes back to the bit.
std::string lost_in(const Packing& packing, const QuantizedLinear& given, const QuantSpec& grid, bool minima) {
  if (!given.global_scale && !given.input_scale && (!minima || grid.symmetric)) return "";
  const QuantizedLinear q = on_grid(clone(given), grid);
  const PackedLinear packed = packing.pack("x", q);
  const TensorSource source = [&](const std::string& name) -> ConstTensorView {
    for (const NamedTensor& t : packed.tensors)
      if (t.name == name) return t.tensor;
    return {};
  };
  const std::string lost = std::string(packing.name) + " does not give back to the bit ";
  try {
    const QuantizedLinear back = packing.unpack("x", q.spec, q.out(), q.in(), source);
    if (back.global_scale != q.global_scale) return lost + "a global scale of " + std::to_string(*q.global_scale);
    if (back.input_scale != q.input_scale) return lost + "a scale of inputs of " + std::to_string(*q.input_scale);
    return content_hash(back) == content_hash(q) ? "" : lost + "these zero points";
  } catch (const Error& e) {
    return lost + "these zero points (" + e.what() + ")";
  }
}

}  // namespace

LinearFormat same_codes(const CheckpointFormat& format, const QuantizedLinear& q, std::string* why_not) {
  const bool reordered = q.group_of.has_value();
  std::string reason;
  for (const QuantSpec& grid : grids_of(q)) {
    std::string why;
    const Packing* packing = choose_packing(format, grid, q.out(), q.in(), reordered, &why);
    if (packing && packing->two_of_four && !two_of_four(q)) {
      why = std::string(packing->name) + " holds two weights of every four inputs, here some have more";
    } else if (packing) {
      why = lost_in(*packing, q, grid, format.gguf);
      if (why.empty()) return {.packing = packing, .spec = grid, .act_order = reordered};
    }
    if (reason.empty()) reason = why;
  }
  if (why_not) *why_not = reason;
  return {};
}

QuantizedLinear on_grid(QuantizedLinear q, const QuantSpec& spec) {
  if (spec.symmetric) q.zeros.reset();
  q.spec = spec;
  return q;
}

}  // namespace fewbit
