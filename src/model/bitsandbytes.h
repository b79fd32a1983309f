#pragma once
// Checkpoints of bitsandbytes (LLM.int8, NF4, FP4), read as dense ones: a weight is decoded when it is asked for.
#include <span>
#include <string>

#include "src/model/model_spec.h"
#include "src/model/weight_store.h"

namespace fewbit {

// True where the config says `quant_method: bitsandbytes`.
bool of_bitsandbytes(const std::string& config_json);

// The store with the float weights of `linears` in the place of their codes:
//   4 bits: two codes a byte, the first in the high nibble; value = quant_map[code] * absmax[block of `blocksize`], in
//   the
//     type that the state names. absmax is itself in bytes where it was quantized again: nested_quant_map[byte] *
//     nested_absmax[block of nested_blocksize] + nested_offset (Dettmers et al. 2023, QLoRA, section 3).
//   8 bits: value = byte * SCB[output] / 127 (Dettmers et al. 2022, LLM.int8, section 2.1), in f32.
// Error{checkpoint} with every linear whose tensors do not fit; Error{unsupported} for a type that is none of these.
WeightStore without_bitsandbytes(std::span<const NamedLinear> linears, WeightStore);

}  // namespace fewbit
