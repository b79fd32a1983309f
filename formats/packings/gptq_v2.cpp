// GPTQ v2, "checkpoint_format": "gptq_v2": zero points stored as they are. It is also the general integer layout: 2 to
// 8 bits (5, 6 and 7 for our own readers), any group, any order of inputs, and every shape. Where K or N does not fill
// whole words the last word is padded with zero fields (rows of qweight = ceil(K*bits/32), columns of qzeros =
// ceil(N*bits/32); at 3, 5, 6, 7 bits bits*ceil(K/32) and bits*ceil(N/32)), and the last group may be short.
// docs/formats/gptq.md has the bytes.
#include "formats/packings/gptq_words.h"
#include "formats/packings/integer_grid.h"

namespace fewbit {
namespace {

using gptq_words::ZeroOffset;

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  return integer_grid::refuses(spec, out, in);
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  return gptq_words::tensors(spec, out, in);
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  return gptq_words::pack(linear, q, ZeroOffset::none);
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  return gptq_words::unpack(linear, spec, {out, in}, source, ZeroOffset::none);
}

}  // namespace

constinit const Packing packing_gptq_v2 = {
    .name = "gptq_v2",
    .summary = "GPTQ v2 words: every integer grid, every shape",
    .refuses = refuses,
    .tensors = tensors,
    .pack = pack,
    .unpack = unpack,
};

}  // namespace fewbit
