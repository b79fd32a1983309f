#pragma once
// Blocks of a .gguf file that are multiplied as such: one copy of them, in the order of
// kernels/products/blocks/block_layout.h, in as many bytes as the file has (K-quants of 4 and 5 bits and IQ4_XS, whose
// scales of 6 bits take 8, 2 to 3 % more).
#include "src/run/linear.h"

namespace fewbit {

// Whether load_linear() leaves a linear or end of a checkpoint in its blocks: the file has it so, and the CPU is to
// multiply packed weights in bf16, with AVX512-BF16 or, where a type has no neutral form, AVX2. Else it is what its
// codes (kernels/products/row_gemm.h) or values make it.
bool runs_as_blocks(const Exec&, const Checkpoint&, const std::string& linear, const LoadOptions&);
// Where it does. The memory of the file is given back as it is read.
Linear gguf_linear(Exec&, const Checkpoint&, const NamedLinear&, Tensor bias);

}  // namespace fewbit
