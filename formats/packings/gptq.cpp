// GPTQ v1, "checkpoint_format": "gptq": zero points are stored minus one, so a zero point of 0 has no
// representation. Written for symmetric grids only (there the zero is 2^(bits-1)); asymmetric files are read.
// Shapes are those that everyone's readers take. docs/formats/gptq.md has the bytes.
#include "formats/packings/gptq_words.h"
#include "formats/packings/integer_grid.h"

namespace fewbit {
namespace {

using gptq_words::ZeroOffset;

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  if (std::string why = integer_grid::refuses(spec, out, in); !why.empty()) return why;
  if (std::string why = integer_grid::refuses_odd_bits(spec); !why.empty()) return why;
  if (!spec.symmetric)
    return "GPTQ v1 stores zero points minus one and cannot hold a zero of 0; asymmetric grids go to gptq_v2";
  if (out % 32 != 0 || in % 32 != 0) {
    return "GPTQ v1 wants N % 32 = 0 and K % 32 = 0, here N = " + std::to_string(out) + ", K = " + std::to_string(in) +
           "; gptq_v2 takes every shape";
  }
  if (in % spec.group_size(in) != 0) {
    return "GPTQ v1 wants K % group = 0, here K = " + std::to_string(in) + ", group " + std::to_string(spec.group) +
           "; gptq_v2 takes a short last group";
  }
  return "";
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  return gptq_words::tensors(spec, out, in);
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  return gptq_words::pack(linear, q, ZeroOffset::one);
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  return gptq_words::unpack(linear, spec, {out, in}, source, ZeroOffset::one);
}

}  // namespace

constinit const Packing packing_gptq = {
    .name = "gptq",
    .summary = "GPTQ v1 words, symmetric; the widest readership",
    .refuses = refuses,
    .tensors = tensors,
    .pack = pack,
    .unpack = unpack,
};

}  // namespace fewbit
