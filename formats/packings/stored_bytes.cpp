#include "formats/stored_bytes.h"

#include "formats/packings/ct_tensors.h"

namespace fewbit {

std::optional<StoredBytes> stored_bytes(const Packing& p, std::string_view linear, const QuantSpec& spec, int64_t out,
                                        int64_t in, const TensorSource& source) {
  const bool f8 = &p == &packing_ct_float || &p == &packing_fp8, i8 = &p == &packing_ct_int;
  if ((!f8 && !i8) || !p.refuses(spec, out, in, false).empty()) return std::nullopt;
  const ct::ByteWeights kind{.dtype = f8 ? DType::f8_e4m3 : DType::i8, .known_as = p.name.data()};
  const std::vector<TensorPlan> plan = ct::byte_tensors(kind, spec, out, in);
  StoredBytes s;
  s.codes = expect_tensor(source, linear, plan[0]);
  s.scales = ct::scales_from_file(source, linear, plan[1], spec, {out, in});
  if (spec.activations == ActQuant::tensor) s.input_scale = ct::single_from_file(source, linear, plan[2]);
  return s;
}

}  // namespace fewbit
