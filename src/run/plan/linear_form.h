#pragma once
// How a linear lies on a device and how many bytes that is: a pure function of its grid and shape, which make_linear()
// (src/run/linear.h) follows and `runner plan` asks where there are no weights.
#include <cstdint>
#include <string>

#include "src/core/quantized_linear.h"

namespace fewbit {

struct LinearForm {
  enum class Kind : uint8_t {
    dense,   // values
    marlin,  // codes of 4 or 8 bits in the Marlin layout
    rows,    // the CPU's own layout
    bytes,   // codes of 8 bits with a scale for each output
    fp4,     // MXFP4 of an expert, as it is stored
  } kind = Kind::dense;
  DType values = DType::bf16;  // of a dense weight
  DType input = DType::bf16;   // what x is multiplied as: of bytes i8, f8_e4m3, or f16 where it is not rounded
  std::string why{};           // the codes are not multiplied as they are; "" where they are, or there are none
};

// The spec as the device has it: a Marlin kernel reads codes of 4 or 8 bits.
QuantSpec spec_on_device(bool on_cuda, const QuantSpec&);
// `spec` as spec_on_device() has it. float32 arithmetic multiplies values alone.
// `expert`: of a mixture whose few tokens have kernels of their own (LoadOptions::expert).
LinearForm form_of(bool on_cuda, const QuantSpec& spec, int64_t out, int64_t in, bool act_order, DType compute,
                   bool expert = false);
LinearForm dense_form(DType compute);
// Bytes of the weight with its scales and zeros, and of a bias where there is one.
int64_t bytes_of(const LinearForm&, const QuantSpec& spec, int64_t out, int64_t in, bool act_order, bool bias);

}  // namespace fewbit
