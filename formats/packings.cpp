// The registry of packings (one entry per line of packings.def) and what their unpack() functions share.
#include "formats/packing.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/core/registry.h"

namespace fewbit {

const std::vector<const Packing*>& packings() {
  static const std::vector<const Packing*> all = {
#define FEWBIT_PACKING(id) &packing_##id,
#include "formats/packings.def"
#undef FEWBIT_PACKING
  };
  return all;
}

const Packing& packing(std::string_view name) { return expect_named(packings(), name, "packing"); }

int64_t packed_bytes(const Packing& p, const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  int64_t n = 0;
  for (const TensorPlan& t : p.tensors(spec, out, in, act_order)) n += t.bytes();
  return n;
}

bool TensorPlan::takes(const ConstTensorView& found) const {
  const auto same = [&](DType d, const Shape& s) { return found.dtype == d && found.shape == s; };
  return same(dtype, shape) ||
         std::any_of(also_read.begin(), also_read.end(), [&](const Form& f) { return same(f.dtype, f.shape); });
}

ConstTensorView expect_tensor(const TensorSource& source, std::string_view linear, const TensorPlan& plan) {
  const std::string name = std::string(linear) + '.' + plan.suffix;
  const std::string expected = "expected " + std::string(name_of(plan.dtype)) + ' ' + plan.shape.str();
  const ConstTensorView v = source(name);
  if (!v.data && plan.shape.numel() > 0) fail(ErrorKind::checkpoint, "tensor '" + name + "' is missing; " + expected);
  if (!plan.takes(v)) {
    fail(ErrorKind::checkpoint,
         "tensor '" + name + "': " + expected + ", found " + std::string(name_of(v.dtype)) + ' ' + v.shape.str());
  }
  return v;
}

}  // namespace fewbit
