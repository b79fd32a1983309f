#pragma once
// Blocks of a .gguf file that are multiplied as such: one copy of them, in the order of
// kernels/products/blocks/block_layout.h, in as many bytes as the file has (K-quants of 4 and 5 bits and IQ4_XS, whose
// scales of 6 bits take 8, 2 to 3 % more).
#include "src/run/linear.h"

namespace fewbit {

// Whether load_linear() leaves a linear or end of a checkpoint in its blocks: the file has it so, and the CPU is to
// multiply packed weights in bf16, with AVX512-BF16 or AVX2, or with int8 inputs.
// Else it is what its codes (kernels/products/row_gemm.h) or values make it.
bool runs_as_blocks(const Exec&, const Checkpoint&, const std::string& linear, const LoadOptions&);
// The form of the blocks that a checkpoint has of a linear or an end; null where it has none that could be multiplied.
const BlockForm* block_form(const Checkpoint&, const std::string& linear);
// Of one that runs_as_blocks(), with inputs as `acts` says. The memory of the file is given back as it is read.
Linear gguf_linear(Exec&, const Checkpoint&, const NamedLinear&, Tensor bias, ActsType);
std::string with_acts(std::string_view type, ActsType);  // "q4_k", "q4_k x int8": a GgufLinear's `type`

}  // namespace fewbit
