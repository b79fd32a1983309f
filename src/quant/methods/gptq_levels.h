#pragma once
// GPTQ where the scales are rounded too: 4-bit floats, and GGUF's blocks with scales of their own. Error feedback with
// the grid of a block chosen for its live weights, then rounds of descent over codes, scales and minima
// (kernels/quantize/level_feedback.h), on the ladder of gptq.cpp. The loop works on the CPU; of a job on a GPU the
// matrices are brought there.
#include "src/quant/method.h"

namespace fewbit {

MethodResult gptq_fp4(Exec&, const LinearJob&);
// Of types that can be opened (BlockType::open). Groups of the job's spec are not used.
EncodedLinear gptq_blocks(Exec&, const LinearJob&, const gguf::BlockType&);

}  // namespace fewbit
