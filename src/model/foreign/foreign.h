#pragma once
// Checkpoints whose codes other programs wrote and that are read as dense ones: a weight is decoded when it is asked
// for, to the values that the program itself computes.
#include <span>
#include <string>

#include "src/model/foreign/decoding.h"

namespace fewbit {

// The quant_method of a config where it is one of these, else "": "bitsandbytes", "hqq", "torchao".
std::string foreign_method(const std::string& config_json);

// "" or one note: that the config of a torchao checkpoint (its quant_type) has activations rounded while it runs, which
// no command here does.
std::string unrounded_inputs_note(const std::string& config_json);

// The store with the float weights of `linears` in the place of their codes. Error{checkpoint} with every linear whose
// tensors do not fit; Error{unsupported} for a type that is not read.
WeightStore without_codes(const std::string& method, std::span<const NamedLinear> linears, WeightStore);

// bitsandbytes. 4 bits: two codes a byte, the first in the high nibble; value = quant_map[code] * absmax[block of
//   `blocksize`], in the type that the state names. absmax is itself in bytes where it was quantized again:
//   nested_quant_map[byte] * nested_absmax[block of nested_blocksize] + nested_offset (Dettmers et al. 2023, QLoRA,
//   section 3). 8 bits: value = byte * SCB[output] / 127 (Dettmers et al. 2022, LLM.int8, section 2.1), in f32.
void take_bitsandbytes(const NamedLinear&, Decoding&);

// HQQ as its layers save themselves (hqq/core/quantize.py, encoded_state_dict): the weight as a matrix of `group_size`
//   columns (axis 1) or rows (axis 0), whose rows lie in the fields of `W_q`: of 1, 2 and 4 bits the first rows in a
//   byte's highest field, of 3 bits ten in an int32 from bit 27 on, else a byte each. value = (code - zero) * scale,
//   each of the two operations rounded to `compute_dtype`.
void take_hqq(const NamedLinear&, Decoding&);

// torchao as transformers saves it (torchao/prototype/safetensors): the file's metadata names a tensor's class, its
// parts
//   are `_weight_qdata`, `_weight_scale` …. Int8Tensor and IntxUnpackedToInt8Tensor: (code - zero) * scale by blocks,
//   each operation in `dtype`. Float8Tensor: E4M3 * scale in f32. Int4Tensor: two codes of -8 … 7 a byte, the first in
//   the low nibble; code * scale + zero, both [group, output].
void take_torchao(const NamedLinear&, Decoding&);

}  // namespace fewbit
